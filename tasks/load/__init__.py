"""Loading: labels from artifacts into FiftyOne, datasets rebuilt, ground truth."""
