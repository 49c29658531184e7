"""One object over time: labels of one camera that show the same thing."""
