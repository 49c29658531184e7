"""The steps of the pipeline and what they need: one room each, see docs/ARCHITECTURE.md."""
