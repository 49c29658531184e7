"""Progress, metrics, traces."""
