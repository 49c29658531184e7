"""Labels and masks held against a truth, or against another run."""
