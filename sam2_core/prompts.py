"""Prompts in pixels of an image, and as the model takes them: boxes, clicks, earlier masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import Rows
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_NEGATIVE,
    POINT_PADDING,
    POINT_POSITIVE,
    FloatArray,
    Prompts,
)


def clip_boxes(
    xyxy_px: FloatArray, size_hw: tuple[int, int]
) -> tuple[FloatArray, npt.NDArray[np.object_]]:
    """Clip boxes to the image, and say which are none.

    Args:
        xyxy_px: float32 (N, 4) left, top, right, bottom in original pixels; may be anything.
        size_hw: (height, width) of the image.

    Returns:
        float32 (N, 4), and N reasons, "" for a valid box.

    """
    height, width = size_hw
    limits = np.array([width, height, width, height], np.float32)
    with np.errstate(invalid="ignore"):
        clipped = np.clip(xyxy_px, 0, limits)
        finite = np.isfinite(xyxy_px).all(1)
        inverted = (xyxy_px[:, 2:] < xyxy_px[:, :2]).any(1)
        no_area = (xyxy_px[:, 2:] == xyxy_px[:, :2]).any(1)
        outside = (clipped[:, 2:] <= clipped[:, :2]).any(1)
    reasons = np.full(len(xyxy_px), "", dtype=object)
    # The first that holds is said: so they come from the last to the first.
    reasons[outside] = "invalid box: outside the image"
    reasons[no_area] = "invalid box: zero area"
    reasons[inverted] = "invalid box: inverted (right < left or bottom < top)"
    reasons[~finite] = "invalid box: a coordinate is not a finite number"
    return clipped, reasons


@dataclass(frozen=True, eq=False)
class PointPrompts(Rows):
    """N prompts of one image, in original pixels.

    Attributes:
        points_px: float32 (N, K, 2) x, y.
        labels: int32 (N, K): 1 positive, 0 negative, -1 not a point (rows may have fewer than K).
        xyxy_px: float32 (N, 4), a box that goes with each prompt's points, or None.
        mask_logits: float32 (N, G, G), low-resolution logits of an earlier mask to refine
            (G = the model's input size / 4), or None.

    Raises:
        ValueError: an array has another shape, or numbers of another kind, or a coordinate of a
            click is not a finite number.

    """

    forms: ClassVar = {
        "points_px": "float32 (N, K, 2)", "labels": "int32 (N, K)", "xyxy_px": "float32 (N, 4)",
        "mask_logits": "float32 (N, G, G)",
    }  # fmt: skip
    by_hand: ClassVar = True

    points_px: FloatArray
    labels: npt.NDArray[np.int32]
    xyxy_px: FloatArray | None = None
    mask_logits: FloatArray | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.isfinite(self.points_px[self.labels != POINT_PADDING]).all():
            raise ValueError("expected clicks at finite x, y in pixels, got NaN or infinite ones")

    @staticmethod
    def of(
        xyxy_px: Any = None, points_px: Any = None, labels: Any = None, mask_logits: Any = None
    ) -> PointPrompts:
        """Make prompts of what there is of them, arrays or lists.

        Raises:
            ValueError: that is nothing, or points without labels.

        """
        if (points_px is None) != (labels is None):
            raise ValueError("points and labels go together")
        given = [array for array in (xyxy_px, labels, mask_logits) if array is not None]
        if not given:
            raise ValueError("no prompt: give boxes_xyxy_px, points and labels, or masks")
        if labels is None:
            points_px, labels = np.zeros((len(given[0]), 0, 2)), np.zeros((len(given[0]), 0))
        return PointPrompts(points_px, np.asarray(labels, np.int32), xyxy_px, mask_logits)

    def boxes_alone(self) -> FloatArray | None:
        """Return the boxes where there are no other prompts."""
        return None if self.labels.shape[1] or self.mask_logits is not None else self.xyxy_px


def point_prompts(
    given: PointPrompts, size_hw: tuple[int, int], image_size: int
) -> tuple[Prompts, npt.NDArray[np.int64], tuple[str, ...]]:
    """Turn prompts in original pixels into model prompts: box corners, points, one padding point.

    Coordinates stay float32 all the way: half precision would lose half a pixel at 1024.

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
    reasons[~(inside | ~real).all(1)] = "invalid point: outside the image"
    reasons[~known] = "invalid point: labels are 1, 0 and -1"
    clipped = None
    if given.xyxy_px is not None:
        clipped, wrong = clip_boxes(given.xyxy_px, size_hw)
        reasons = np.where(reasons == "", wrong, reasons)
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
    if clipped is not None:
        corners = clipped[rows].reshape(-1, 2, 2) * scale
        points = np.concatenate([corners, points], 1)
        kinds = np.array([BOX_TOP_LEFT, BOX_BOTTOM_RIGHT], np.int32)
        labels = np.concatenate([np.tile(kinds, (len(rows), 1)), labels], 1)
    logits = None if given.mask_logits is None else given.mask_logits[rows].astype(np.float32)
    return Prompts(points, labels, np.zeros(len(rows), np.int64), logits), rows, tuple(reasons)


def box_prompts(
    xyxy_px: FloatArray, size_hw: tuple[int, int], image_size: int
) -> tuple[Prompts, npt.NDArray[np.int64], tuple[str, ...]]:
    """Turn boxes, float32 (N, 4), into model prompts; as `point_prompts`."""
    return point_prompts(PointPrompts.of(xyxy_px), size_hw, image_size)
