"""A contact sheet of pictures beside their masks: `python -m lab.scenes.gallery FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.render import render_scene
from lab.scenes.riders import riders_as_one
from lab.scenes.types import Scene

STREETS = (206, 1003, 34, 25)
SHAPES = (101, 110, 113, 118)
CLOSE = (2, 4, 100, 103)
TILE_HW = (225, 400)


def overlay(scene: Scene) -> npt.NDArray[np.uint8]:
    """Return the image (H, W, 3) with every mask in a colour of its own."""
    picture = scene.image.copy()
    for instance in scene.instances:
        colour = np.random.default_rng([79, instance.track_id]).uniform(60, 255, 3)
        mask = instance.full_mask(scene.size_hw)
        picture[mask] = (picture[mask] * 0.4 + colour * 0.6).astype(np.uint8)
    return picture


def gallery() -> npt.NDArray[np.uint8]:
    """Rows of pictures of each domain, each with its masks to the right; close riders as one."""
    rows = []
    for domain, seeds in (("street", STREETS), ("random", SHAPES), ("close", CLOSE)):
        tiles = []
        for seed in seeds:
            scene = render_scene(seed, (TILE_HW[0] * 2, TILE_HW[1] * 2), domain=domain)
            tiles += [scene.image, overlay(riders_as_one(scene) if domain == "close" else scene)]
        small = [cv2.resize(t, TILE_HW[::-1], interpolation=cv2.INTER_AREA) for t in tiles]
        rows += [np.hstack(small[i : i + 4]) for i in range(0, len(small), 4)]
    return np.vstack(rows)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    cv2.imwrite(str(target), cv2.cvtColor(gallery(), cv2.COLOR_RGB2BGR))
