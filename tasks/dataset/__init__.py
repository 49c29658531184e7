"""FiftyOne's database and datasets: documents, ids, schema, what is loaded."""
