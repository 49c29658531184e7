"""Measurements of the model: this product's ways to run it and, beside them, everybody else's."""
