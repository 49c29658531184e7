"""Pictures that no training has seen, with their truth: what the model cards are measured on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lab.scenes import Frame, render_scene
from lab.scenes.drives import add_to_coco, coco

# Training renders seeds from 0 up; it would take years to get here.
FIRST_HELD_OUT_SEED = 90_000_000


def write_held_out(
    folder: Path, count: int, on_picture: Callable[[int], object] = lambda _: None
) -> Path:
    """Render street scenes of held-out seeds.

    Args:
        folder: gets the pictures (png) and `truth.json`.
        count: how many.
        on_picture: called with how many are done.

    Returns:
        The path of the truth, COCO instances json.

    """
    import cv2

    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for i in range(count):
        seed = FIRST_HELD_OUT_SEED + i
        scene = render_scene(seed)
        name = f"{seed}.png"
        cv2.imwrite(str(folder / name), np.ascontiguousarray(scene.image[..., ::-1]))
        add_to_coco(images, annotations, name, Frame("front", i, 0, scene))
        on_picture(i + 1)
    path = folder / "truth.json"
    path.write_text(json.dumps(coco(images, annotations)), encoding="utf-8")
    return path
