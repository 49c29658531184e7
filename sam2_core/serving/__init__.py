"""SAM 2 on a Triton server, and its clients."""
