"""Batched SAM 2: boxes in, instance masks out. numpy only at import."""
