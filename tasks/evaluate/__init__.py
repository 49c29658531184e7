"""Labels and masks held against a truth; two runs compared."""
