"""The run's storage: artifacts, manifests, checks, what was given up."""
