"""A sequence's way through the steps: chunks, sequences, Prefect tasks."""
