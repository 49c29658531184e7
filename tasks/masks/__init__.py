"""Masks for boxes, by the model that is warm in this process."""
