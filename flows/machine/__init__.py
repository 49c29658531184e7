"""Workers and services of this machine."""
