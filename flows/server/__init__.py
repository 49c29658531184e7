"""Prefect's server: ours or the user's, deployments, submitting, watching."""
