"""Boxes of one object found several times: the best of them stays."""

from __future__ import annotations

from typing import Any

import numpy as np

from sam2_core.types import FloatArray

Indices = np.ndarray[Any, np.dtype[np.int64]]
# Above this overlap two boxes are one object whatever their names: a pick-up is no car and truck.
SAME_OBJECT_IOU = 0.85


def suppressed(
    xywh_px: FloatArray, scores: FloatArray, classes: Indices, limits: tuple[float, float]
) -> Indices:
    """Positions of the boxes that stay, best first.

    Args:
        xywh_px: left, top, width, height, float32 (N, 4).
        scores: (N,).
        classes: numbers of classes, (N,).
        limits: least score, and the IoU above which a box of one class gives way to a better one.

    """
    import cv2

    if not len(scores):
        return np.zeros(0, np.int64)
    given: tuple[Any, Any, Any] = (xywh_px, scores, classes)  # OpenCV's stubs know lists only
    kept = np.asarray(cv2.dnn.NMSBoxesBatched(*given, *limits), np.int64)
    some: tuple[Any, Any] = (xywh_px[kept], scores[kept])
    same = cv2.dnn.NMSBoxes(*some, limits[0], SAME_OBJECT_IOU)
    chosen = kept[np.asarray(same, np.int64)]
    best_first: Indices = chosen[np.argsort(-scores[chosen], kind="stable")]
    return best_first
