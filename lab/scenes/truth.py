"""Read the instances off a painted canvas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.scenes.canvas import Canvas
from lab.scenes.types import Instance, Scene

Array = npt.NDArray[np.float64]
# What an annotator would label and a box prompt identifies: instances above nuScenes' lowest
# visibility bin (0 to 40%; Caesar et al. 2020). Less is in the truth as a region to ignore.
MIN_VISIBLE = 0.4
# Visible pixels that an instance needs, for a picture of 1280 x 720; scales with the area.
MIN_AREA_PX = 150


@dataclass(frozen=True, eq=False)
class Painted:
    """An object on the canvas: its owner number, pixel bounds, pixels before occlusion, mount."""

    label: str
    track_id: int
    depth_m: float
    owner: int
    bounds: Array
    whole_px: int
    rides: int = -1


def collect(image: npt.NDArray[np.uint8], canvas: Canvas, painted: list[Painted]) -> Scene:
    """Make the scene: every owner's pixels, sorted into asked for and dropped."""
    least = max(4.0, MIN_AREA_PX * image.shape[0] * image.shape[1] / (720 * 1280))
    instances: list[Instance] = []
    dropped: list[Instance] = []
    for item in painted:
        instance = _read(canvas, item) if item.label else None
        if instance is not None:
            kept = instance.area_px >= least and instance.visible_fraction >= MIN_VISIBLE
            (instances if kept else dropped).append(instance)
    return Scene(image, tuple(instances), tuple(dropped))


def _read(canvas: Canvas, item: Painted) -> Instance | None:
    """One owner's visible pixels, or None when there are none."""
    area = canvas.roi(item.bounds.reshape(2, 2), 2)
    if area is None:
        return None
    mask = canvas.owner[area] == item.owner
    ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(ys):
        return None
    crop = mask[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1].copy()
    x, y = int(xs[0]) + area[1].start, int(ys[0]) + area[0].start
    box = np.array([x, y, x + crop.shape[1], y + crop.shape[0]], np.float32)
    visible = int(np.count_nonzero(crop))
    fraction = min(1.0, visible / max(item.whole_px, 1) * _inside(item.bounds, canvas.size_hw))
    return Instance(crop, (x, y), box, item.label, item.track_id, item.depth_m, fraction, visible,
                    item.rides)  # fmt: skip


def _inside(bounds: Array, size_hw: tuple[int, int]) -> float:
    """Share of the bounds that lies inside the picture."""
    limit = np.array([size_hw[1], size_hw[0]])
    # What passes beside the camera projects to infinity; count at most one picture beyond.
    bounds = np.clip(bounds.reshape(2, 2), -limit, 2 * limit).ravel()
    low, high = np.clip(bounds[:2], 0, limit), np.clip(bounds[2:], 0, limit)
    whole = float(np.prod(np.maximum(bounds[2:] - bounds[:2], 1e-6)))
    return float(np.prod(high - low)) / whole
