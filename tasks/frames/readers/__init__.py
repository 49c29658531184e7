"""Formats of sources: one module each, chosen by looking at the source or by name."""
