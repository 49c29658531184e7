"""What there is to do: plans, shards of equal time, measured rates."""
