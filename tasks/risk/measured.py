"""The boxes and masks of many frames in numbers: what features are computed of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import IntArray
from tasks.masks.crops import BoolArray
from tasks.risk.geometry import Numbers, box_areas
from tasks.store.tables import LabeledFrame


@dataclass(frozen=True, eq=False)
class Measured:
    """The boxes and masks of F frames in numbers, one frame after another; N instances in all.

    Attributes:
        starts: int64 (F + 1,), where each frame's instances begin; the last one is N.
        labeled: bool (F,), whether a frame has masks at all.
        boxes_px: float64 (N, 4), zeros where invalid.
        size_hw_px: float64 (N, 2), of the image.
        area_px: float64 (N,) of the masks.
        fill: float64 (N,), share of the box that its mask covers.
        log_area: float64 (N,), of the boxes.
        classes, tracks: int64 (N,), numbers of the class names and track ids (-1: none).

    """

    starts: IntArray
    labeled: BoolArray
    boxes_px: Numbers
    size_hw_px: Numbers
    area_px: Numbers
    fill: Numbers
    log_area: Numbers
    classes: IntArray
    tracks: IntArray

    def __post_init__(self) -> None:
        freeze_arrays(
            self, starts="int64 (edges)", labeled="bool (F)", boxes_px="float64 (N, 4)",
            size_hw_px="float64 (N, 2)", area_px="float64 (N)", fill="float64 (N)",
            log_area="float64 (N)", classes="int64 (N)", tracks="int64 (N)",
        )  # fmt: skip

    @staticmethod
    def of(frames: Sequence[LabeledFrame]) -> Measured:
        """Measure what needs no mask pixels."""
        counts = [0 if one.masks is None else len(one.boxes) for one in frames]
        some = [(one.boxes, one.masks) for one in frames if one.masks is not None]
        px = np.concatenate([np.zeros((0, 4)), *(boxes.xyxy_px for boxes, _ in some)])
        px[~np.isfinite(px).all(axis=1)] = 0
        px[(px[:, 2] < px[:, 0]) | (px[:, 3] < px[:, 1])] = 0
        area = np.concatenate([np.zeros(0), *(masks.area_px for _, masks in some)])
        extent = box_areas(px).clip(1)
        numbers: dict[str, int] = {}
        names = [numbers.setdefault(one, len(numbers)) for boxes, _ in some for one in boxes.labels]
        tracks = [
            np.full(len(boxes), -1) if boxes.track_ids is None else boxes.track_ids
            for boxes, _ in some
        ]
        sizes = np.array([masks.size_hw for _, masks in some], np.float64).reshape(-1, 2)
        return Measured(
            np.cumsum([0, *counts]), np.array([one.masks is not None for one in frames], bool), px,
            np.repeat(sizes, [len(boxes) for boxes, _ in some], axis=0), area, area / extent,
            np.log(extent), np.array(names, np.int64),
            np.concatenate([np.zeros(0, np.int64), *tracks]),
        )  # fmt: skip

    def rows(self, frame: int) -> slice:
        """Rows of a frame's instances."""
        return slice(int(self.starts[frame]), int(self.starts[frame + 1]))
