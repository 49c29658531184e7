"""How likely a label is wrong, and why."""
