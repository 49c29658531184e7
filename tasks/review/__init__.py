"""What people decide: queue, decisions, export, labels sent back."""
