"""Boxes: detected or imported."""
