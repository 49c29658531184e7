"""What people decide: queue, decisions, export."""
