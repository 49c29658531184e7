"""Training the compact models on rendered scenes: `python -m lab.training --config FILE`."""
