"""Composition: parameters, Prefect flows and the command line."""
