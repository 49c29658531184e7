"""Ways to run an exported model."""
