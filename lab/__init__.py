"""Scenes, training, fits of the risk, measurements: beside the product, never part of it."""
