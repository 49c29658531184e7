"""Scenes, training, risk fitting, evaluation: the pipeline never imports it."""
