"""What lab/tools/record_reference.py recorded: PyTorch's outputs for the exported micro model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sam2_core.types import LowResMasks, Prompts

DATA = Path(__file__).parents[1] / "data"
MODEL = DATA / "micro"


def load_recorded() -> dict[str, np.ndarray]:
    """Inputs and outputs by name."""
    with np.load(DATA / "micro_reference.npz") as file:
        return dict(file)


def points_and_labels(recorded: dict[str, np.ndarray], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Points and labels of a "box", "click" or "mask" prompt; a mask refines a box."""
    shape = "click" if kind == "click" else "box"
    return recorded[f"{shape}_points"], recorded[f"{shape}_labels"]


def recorded_prompts(recorded: dict[str, np.ndarray], kind: str) -> Prompts:
    """Return the prompts as a backend takes them."""
    masks = recorded["mask_input"][:, 0] if kind == "mask" else None
    return Prompts(*points_and_labels(recorded, kind), recorded["image_index"], masks)


def assert_scores_as_recorded(
    decoded: LowResMasks, recorded: dict[str, np.ndarray], kind: str
) -> None:
    for name in ("predicted_iou", "object_score", "stability"):
        np.testing.assert_allclose(getattr(decoded, name), recorded[f"{kind}_{name}"], atol=1e-3)
