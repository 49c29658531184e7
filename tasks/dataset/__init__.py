"""FiftyOne's database and datasets: loading labels, building them anew."""
