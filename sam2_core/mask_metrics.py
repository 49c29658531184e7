"""How well two masks of one image agree: IoU, boundary F, and COCO's classes of size."""

from __future__ import annotations

import math

import numpy as np

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
    there. Two empty masks give 1, one empty mask 0. `tasks.evaluate.davis` has that benchmark's own
    contours and tolerance.
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
