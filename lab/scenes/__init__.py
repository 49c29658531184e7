"""Procedural driving scenes with exact ground truth; numpy and OpenCV only."""

from lab.scenes.drives import render_sequence, write_sequence
from lab.scenes.render import DOMAINS, render_scene
from lab.scenes.types import LABELS, RANDOM_LABEL, Frame, Instance, Scene

__all__ = [
    "DOMAINS", "LABELS", "RANDOM_LABEL", "Frame", "Instance", "Scene", "render_scene",
    "render_sequence", "write_sequence",
]  # fmt: skip
