"""Prompts that are more than a box: clicked points, boxes with clicks, earlier masks to refine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import own_arrays
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_NEGATIVE,
    POINT_PADDING,
    POINT_POSITIVE,
    FloatArray,
    Prompts,
)


class BoxPrompts(NamedTuple):
    """The valid boxes of an image as prompts, and why the others are not.

    Attributes:
        rows: int64 (V,), the valid rows of the caller's boxes, ascending.
        clipped_xyxy_px: float32 (N, 4), boxes clipped to the image; rows of invalid ones are 0.
        points_model: float32 (V, 3, 2), corners and the padding point in model pixels.
        labels: int32 (V, 3): 2, 3, -1.
        reasons: N strings, "" for a valid box.

    """

    rows: npt.NDArray[np.int64]
    clipped_xyxy_px: FloatArray
    points_model: FloatArray
    labels: npt.NDArray[np.int32]
    reasons: tuple[str, ...]


def box_prompts(xyxy_px: FloatArray, size_hw: tuple[int, int], image_size: int) -> BoxPrompts:
    """Turn boxes in original pixels into the published box prompt: two corners and a padding point.

    A box partly outside the image is clipped to it. Coordinates stay float32 all the way: half
    precision would lose half a pixel at 1024.

    Args:
        xyxy_px: float32 (N, 4) left, top, right, bottom in original pixels; may be anything.
        size_hw: (height, width) of the original image.
        image_size: S, the model's input size.

    """
    boxes = np.asarray(xyxy_px, np.float32).reshape(-1, 4)
    height, width = size_hw
    limits = np.array([width, height, width, height], np.float32)
    with np.errstate(invalid="ignore"):
        clipped = np.clip(boxes, 0, limits)
        finite = np.isfinite(boxes).all(1)
        inverted = ((boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1])) & finite
        no_area = ((boxes[:, 2] == boxes[:, 0]) | (boxes[:, 3] == boxes[:, 1])) & finite & ~inverted
        inside = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
    outside = finite & ~inverted & ~no_area & ~inside
    reasons = np.full(len(boxes), "", dtype=object)
    reasons[~finite] = "invalid box: a coordinate is not a finite number"
    reasons[inverted] = "invalid box: inverted (right < left or bottom < top)"
    reasons[no_area] = "invalid box: zero area"
    reasons[outside] = "invalid box: outside the image"
    valid = finite & inside & ~inverted & ~no_area
    clipped[~valid] = 0
    rows = np.flatnonzero(valid)
    points = np.zeros((len(rows), 3, 2), np.float32)
    scale = np.array([image_size / width, image_size / height], np.float32)
    points[:, :2] = clipped[rows].reshape(-1, 2, 2) * scale
    labels = np.tile(
        np.array([BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING], np.int32), (len(rows), 1)
    )
    return BoxPrompts(rows, clipped, points, labels, tuple(reasons))


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

    def chosen(self, rows: slice) -> PointPrompts:
        """Return some of them."""
        boxes, logits = self.xyxy_px, self.mask_logits
        return PointPrompts(
            self.points_px[rows], self.labels[rows],
            None if boxes is None else boxes[rows], None if logits is None else logits[rows],
        )  # fmt: skip


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
