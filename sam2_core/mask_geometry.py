"""Masks of an image: how well two agree, classes of size, and outlines as polygons."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# COCO's size classes, by the area of the mask in pixels.
SIZES = ("small", "medium", "large")
SMALL_AREA_PX, MEDIUM_AREA_PX = 32**2, 96**2


def size_class(area_px: float) -> str:
    """COCO's size class: small under 32x32 px, medium under 96x96, large."""
    if area_px < SMALL_AREA_PX:
        return "small"
    return "medium" if area_px < MEDIUM_AREA_PX else "large"


def mask_iou(first: bytes, second: bytes, size_hw: tuple[int, int]) -> float:
    """IoU of two compressed run-length masks of one image; two empty masks give 1."""
    from pycocotools import mask as coco_mask

    a = {"counts": first, "size": list(size_hw)}
    b = {"counts": second, "size": list(size_hw)}
    if not coco_mask.area(a) and not coco_mask.area(b):
        return 1.0
    return float(coco_mask.iou([a], [b], [0])[0, 0])


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
    from pycocotools import mask as coco_mask

    rles = [{"counts": one, "size": list(size_hw)} for one in (first, second)]
    masks = [np.ascontiguousarray(coco_mask.decode(one)) for one in rles]
    if not masks[0].any() or not masks[1].any():
        return float(masks[0].any() == masks[1].any())
    boxes = np.array([coco_mask.toBbox(one) for one in rles])
    boxes[:, 2:] += boxes[:, :2]
    margin = tolerance_px + 2
    left, top = np.maximum(boxes[:, :2].min(0).astype(int) - margin, 0)
    right, bottom = boxes[:, 2:].max(0).astype(int) + margin
    crops = [np.pad(mask[top:bottom, left:right], 1) for mask in masks]
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    contours = [crop - cv2.erode(crop, cross) for crop in crops]
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * tolerance_px + 1,) * 2)
    near = [cv2.dilate(contour, disk) for contour in contours]
    precision = (contours[0] & near[1]).sum() / contours[0].sum()
    recall = (contours[1] & near[0]).sum() / contours[1].sum()
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


Bitmap = npt.NDArray[np.uint8]
Points = npt.NDArray[np.float64]


def polygons(mask: Bitmap) -> list[Points]:
    """Outlines of a mask, one closed polygon per part, holes joined to their part by a cut.

    A pixel's centre is at +0.5; outlines run a quarter of a pixel inside the pixels' edges, so that
    rasterising by centres gives the mask again.

    Args:
        mask: uint8 (H, W) of 0 and 1.

    Returns:
        float64 (K, 2) x, y in pixels each.

    """
    import cv2

    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return []
    top, left = int(rows[0]), int(columns[0])
    crop = mask[top : rows[-1] + 1, left : columns[-1] + 1]
    doubled = np.pad(crop.repeat(2, 0).repeat(2, 1), 1)
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
