"""A sequence's way through the steps."""
