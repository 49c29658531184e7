"""What is to do: plans, shards of equal time, rates."""
