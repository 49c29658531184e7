"""J and F as the DAVIS benchmark defines them (Perazzi et al., CVPR 2016), for whole masks.

J is the IoU of two masks. F is the F measure of their boundaries: a pixel belongs to the boundary
where its right, lower or lower right neighbour has another value (the map of Martin's benchmark
that DAVIS uses), and boundaries match within 0.8% of the image's diagonal, rounded up, by dilation
with a disk.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
TOLERANCE = 0.008


def boundary_map(mask: BoolArray) -> BoolArray:
    """Return where a mask differs from its right, lower or lower right neighbour: bool (H, W)."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    here = padded[:-1, :-1]
    right, below, across = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    found: BoolArray = (here != right) | (here != below) | (here != across)
    found[-1] = mask[-1] != np.append(mask[-1, 1:], mask[-1, -1])
    found[:, -1] = mask[:, -1] != np.append(mask[1:, -1], mask[-1, -1])
    found[-1, -1] = False
    return found


def boundary_f(first: BoolArray, second: BoolArray, tolerance: float = TOLERANCE) -> float:
    """Contour accuracy of two masks, bool (H, W): first is the prediction, second the truth.

    Args:
        first: a mask.
        second: another.
        tolerance: at least 1 is in pixels, else of the diagonal.

    """
    import cv2

    radius = math.ceil(tolerance * math.hypot(*first.shape)) if tolerance < 1 else int(tolerance)
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    disk = (x**2 + y**2 <= radius**2).astype(np.uint8)
    maps = [boundary_map(one).astype(np.uint8) for one in (first, second)]
    counts = [int(one.sum()) for one in maps]
    near = [cv2.dilate(one, disk, borderType=cv2.BORDER_CONSTANT, borderValue=0) for one in maps]
    matched = int((maps[0] & near[1]).sum()), int((maps[1] & near[0]).sum())
    if not counts[0] and not counts[1]:
        return 1.0
    if not counts[0] or not counts[1]:
        return 0.0
    precision, recall = matched[0] / counts[0], matched[1] / counts[1]
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
