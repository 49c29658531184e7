"""Loading: labels from artifacts into FiftyOne, datasets built anew, ground truth."""
