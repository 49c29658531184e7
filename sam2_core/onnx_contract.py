"""Names in exported graphs that exporter and backends share, as docs/MODELS.md describes."""

from __future__ import annotations

# Raised when a graph's inputs, outputs or meaning change: models on disk are then exported anew.
# 2: the image is float planes; it was uint8 before, rounded to grey levels.
FORMAT_VERSION = 2
# Outputs of the encoder, inputs of every decoder.
FEATURES = ("embedding", "high_res_s0", "high_res_s1")
# The inputs that every prompt has.
PROMPTS = ("points", "labels", "image_index")
# Points of a box prompt: its two corners and one padding point (see `Prompts`).
BOX_POINTS = 3
SCORES = ("predicted_iou", "object_score", "stability")
# What the graphs for close-ups have behind their names.
CLOSE_UP = "_close_up"
# Outputs of a decoder.
DECODED = ("logits", *SCORES)
