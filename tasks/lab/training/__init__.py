"""Training the compact models on rendered scenes: `autolabel models train --config FILE`."""
