"""Masks of an image: how well two agree, classes of size, and outlines as polygons."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rlemasklib import RLEMask

# COCO's size classes, by the area of the mask in pixels.
SIZES = ("small", "medium", "large")
SMALL_AREA_PX, MEDIUM_AREA_PX = 32**2, 96**2


def size_class(area_px: float) -> str:
    """COCO's size class: small under 32x32 px, medium under 96x96, large."""
    if area_px < SMALL_AREA_PX:
        return "small"
    return "medium" if area_px < MEDIUM_AREA_PX else "large"


def mask_of(counts: Any, size_hw: Sequence[int]) -> RLEMask:
    """Read COCO's `counts`: run lengths as a compressed string (bytes or text) or a list.

    Raises:
        ValueError: they are damaged: their runs are not those of the image.

    """
    try:
        if isinstance(counts, list):
            return RLEMask.from_counts(counts, tuple(size_hw))
        return RLEMask.from_dict({"size": [*size_hw], "counts": counts})
    except (ValueError, TypeError, OverflowError):
        size = f"{size_hw[0]}x{size_hw[1]}"
        raise ValueError(f"counts are no run lengths of {size} pixels (h x w)") from None


def mask_iou(first: bytes, second: bytes, size_hw: tuple[int, int]) -> float:
    """IoU of two compressed run-length masks of one image; two empty masks give 1."""
    mask, other = mask_of(first, size_hw), mask_of(second, size_hw)
    return float(mask.iou(other)) if mask.any() or other.any() else 1.0


def boundary_tolerance_px(size_hw: tuple[int, int]) -> int:
    """Tolerance of the boundary F measure: 0.2% of the image's diagonal, 3 px at 1280x720."""
    return max(1, round(0.002 * math.hypot(*size_hw)))


def boundary_f(first: bytes, second: bytes, size_hw: tuple[int, int], tolerance_px: int) -> float:
    """Boundary F measure of two masks of one image (Perazzi et al., DAVIS, CVPR 2016).

    Precision is the share of the first mask's contour within `tolerance_px` of the second's,
    recall the other way round. Contours are inner ones, so a mask cut by the image's border ends
    there. Two empty masks give 1, one empty mask 0. `tasks.evaluate.metrics` has that benchmark's
    own contours and tolerance.
    """
    import cv2

    masks = [mask_of(rle, size_hw) for rle in (first, second)]
    if not masks[0].any() or not masks[1].any():
        return float(masks[0].any() == masks[1].any())
    boxes = np.array([mask.bbox() for mask in masks], np.int64)
    boxes[:, 2:] += boxes[:, :2]
    margin = tolerance_px + 2
    left, top = np.maximum(boxes[:, :2].min(0) - margin, 0).tolist()
    right, bottom = (boxes[:, 2:].max(0) + margin).tolist()
    crops = [np.pad(mask[top:bottom, left:right].to_array(order="C"), 1) for mask in masks]
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    contours = [crop - cv2.erode(crop, cross) for crop in crops]
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * tolerance_px + 1,) * 2)
    near = [cv2.dilate(contour, disk) for contour in contours]
    precision = (contours[0] & near[1]).sum() / contours[0].sum()
    recall = (contours[1] & near[0]).sum() / contours[1].sum()
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


Bitmap = npt.NDArray[np.uint8]
Points = npt.NDArray[np.float64]


def polygons(mask: RLEMask) -> list[Points]:
    """Outlines of a mask, one closed polygon per part, holes joined to their part by a cut.

    A pixel's centre is at +0.5; outlines run a quarter of a pixel inside the pixels' edges, so that
    rasterising by centres gives the mask again.

    Returns:
        float64 (K, 2) x, y in pixels each.

    """
    import cv2

    if not mask.any():
        return []
    crop, (left, top, *_) = mask.tight_crop()
    doubled = np.pad(crop.to_array(order="C").repeat(2, 0).repeat(2, 1), 1)
    contours, tree = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    parts: dict[int, list[Points]] = {}
    for number, contour in enumerate(contours):
        points = (contour[:, 0, :].astype(np.float64) - 0.5) / 2 + (left, top)
        around = int(tree[0][number][3])
        parts.setdefault(number if around < 0 else around, []).append(points)
    return [one_polygon(part) for part in parts.values()]


def one_polygon(rings: Sequence[Points]) -> Points:
    """Join rings to the first one by cuts of no width, each at the nearest of its corners.

    A cut is passed there and back, so rasterising by COCO's rules does not see it.
    """
    from scipy.spatial import cKDTree

    first, *others = rings
    if not others:
        return first
    corners = cKDTree(first).query([ring[0] for ring in others])[1]
    pieces, last = [], 0
    for number in corners.argsort(kind="stable"):
        here = int(corners[number])
        pieces += [first[last : here + 1], others[number], others[number][:1]]
        last = here
    return np.concatenate([*pieces, first[last:]])
