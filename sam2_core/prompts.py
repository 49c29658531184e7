"""Prompts that are more than a box: clicked points, boxes with clicks, earlier masks to refine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import own_arrays
from sam2_core.preprocess import box_prompts
from sam2_core.types import (
    POINT_NEGATIVE,
    POINT_PADDING,
    POINT_POSITIVE,
    FloatArray,
    Prompts,
)


@dataclass(frozen=True, eq=False)
class PointPrompts:
    """N prompts of one image, in original pixels.

    Attributes:
        points_px: float32 (N, K, 2) x, y.
        labels: int32 (N, K): 1 positive, 0 negative, -1 not a point (rows may have fewer than K).
        xyxy_px: float32 (N, 4), a box that goes with each prompt's points, or None.
        mask_logits: float32 (N, G, G), low-resolution logits of an earlier mask to refine
            (G = the model's input size / 4), or None.

    """

    points_px: FloatArray
    labels: npt.NDArray[np.int32]
    xyxy_px: FloatArray | None = None
    mask_logits: FloatArray | None = None

    def __post_init__(self) -> None:
        own_arrays(
            self, points_px="float32 (N, K, 2)", labels="int32 (N, K)", xyxy_px="float32 (N, 4)",
            mask_logits="float32 (N, G, G)",
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.labels)


def point_prompts(
    given: PointPrompts, size_hw: tuple[int, int], image_size: int
) -> tuple[Prompts, npt.NDArray[np.int64], tuple[str, ...]]:
    """Turn prompts in original pixels into model prompts: box corners, points, one padding point.

    Args:
        given: N prompts.
        size_hw: (height, width) of the original image.
        image_size: S, the model's input size.

    Returns:
        The V valid prompts, their rows int64 (V,), and N reasons ("" for a valid one).

    """
    count, points_per_row = given.labels.shape
    height, width = size_hw
    real = given.labels != POINT_PADDING
    known = np.isin(given.labels, (POINT_POSITIVE, POINT_NEGATIVE, POINT_PADDING)).all(1)
    with np.errstate(invalid="ignore"):
        inside = ((given.points_px >= 0) & (given.points_px <= (width, height))).all(2)
    reasons = np.full(count, "", dtype=object)
    reasons[~(inside | ~real).all(1)] = "invalid point: outside the image or not a finite number"
    reasons[~known] = "invalid point: labels are 1, 0 and -1"
    boxes = None
    if given.xyxy_px is not None:
        boxes = box_prompts(given.xyxy_px, size_hw, image_size)
        reasons = np.where(reasons == "", np.array(boxes.reasons, dtype=object), reasons)
    elif points_per_row == 0 or given.mask_logits is None:
        reasons[~real.any(1)] = "no point"
    rows = np.flatnonzero(reasons == "")
    scale = np.array([image_size / width, image_size / height], np.float32)
    # Real points first: what follows them is padding that is cut off before decoding.
    order = np.argsort(~real[rows], axis=1, kind="stable")
    points = np.take_along_axis(given.points_px[rows], order[..., None], 1).astype(np.float32)
    labels = np.take_along_axis(given.labels[rows], order, 1).astype(np.int32)
    points = np.where((labels != POINT_PADDING)[..., None], points * scale, np.float32(0))
    points = np.pad(points, ((0, 0), (0, 1), (0, 0)))
    labels = np.pad(labels, ((0, 0), (0, 1)), constant_values=POINT_PADDING)
    if boxes is not None:
        chosen = np.searchsorted(boxes.rows, rows)
        points = np.concatenate([boxes.points_model[chosen, :2], points], 1)
        labels = np.concatenate([boxes.labels[chosen, :2], labels], 1)
    logits = None if given.mask_logits is None else given.mask_logits[rows].astype(np.float32)
    return Prompts(points, labels, np.zeros(len(rows), np.int64), logits), rows, tuple(reasons)
