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


def recorded_prompts(recorded: dict[str, np.ndarray], kind: str) -> Prompts:
    """Return "box", "click" or "mask" prompts as a backend takes them; a mask refines a box."""
    shape = "click" if kind == "click" else "box"
    masks = recorded["mask_input"][:, 0] if kind == "mask" else None
    points, labels = recorded[f"{shape}_points"], recorded[f"{shape}_labels"]
    return Prompts(points, labels, recorded["image_index"], masks)


def assert_scores_as_recorded(
    decoded: LowResMasks, recorded: dict[str, np.ndarray], kind: str
) -> None:
    for name in ("predicted_iou", "object_score", "stability"):
        np.testing.assert_allclose(getattr(decoded, name), recorded[f"{kind}_{name}"], atol=1e-3)
