"""One object over time: labels of successive frames of one camera that show the same thing.

A tracker's ids decide where there are any. Else boxes of one class are joined from frame to frame
by their overlap, after each has moved on as it did before. The same labels give the same objects,
whenever and wherever they are loaded: an object is named by its first label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment

from sam2_core.types import Boxes
from tasks.risk.geometry import Numbers, box_ious

LEAST_IOU = 0.3  # of a box with where its object is expected
MOST_MISSED = 8  # frames in a row in which a detector may lose an object
_MEMORY = 0.5  # weight of the motion known so far against that of the newest step


@dataclass(eq=False)
class _Seen:
    """An object as it was last seen.

    Attributes:
        name: of the object.
        label: its class.
        box_px: float64 (4,), x1 y1 x2 y2.
        motion_px: float64 (4,), of each side in a frame.
        missed: frames since.

    """

    name: str
    label: str
    box_px: Numbers
    motion_px: Numbers = field(default_factory=lambda: np.zeros(4))
    missed: int = 0

    def expected_px(self) -> Numbers:
        """Box in the next frame; a side that would pass its opposite one stays."""
        box = self.box_px + self.motion_px * (self.missed + 1)
        ordered = box[0] < box[2] and box[1] < box[3]
        return box if ordered else self.box_px

    def see(self, box_px: Numbers) -> None:
        """Take note of a sighting."""
        step = (box_px - self.box_px) / (self.missed + 1)
        self.motion_px = _MEMORY * self.motion_px + (1 - _MEMORY) * step
        self.box_px, self.missed = box_px, 0


class ObjectLinker:
    """Names the objects of one camera's labels, frame after frame."""

    def __init__(self) -> None:
        """Start before the first frame."""
        self._seen: list[_Seen] = []
        self._tracked: dict[tuple[str, int], str] = {}

    def link(self, boxes: Boxes, label_ids: Sequence[str]) -> list[str]:
        """Name the objects of the next frame's labels.

        Args:
            boxes: N boxes; a frame that failed has none.
            label_ids: N ids; an object takes that of its first label.

        Returns:
            N names.

        """
        names = [self._by_track(boxes, row, one) for row, one in enumerate(label_ids)]
        free = [row for row, name in enumerate(names) if not name]
        px = boxes.xyxy_px.astype(np.float64)
        usable = np.isfinite(px).all(axis=1) & (px[:, 0] < px[:, 2]) & (px[:, 1] < px[:, 3])
        match = self._match(boxes, px, [row for row in free if usable[row]])
        for one in self._seen:
            one.missed += 1
        for row in free:
            seen = match.get(row)
            names[row] = seen.name if seen else label_ids[row]
            if seen:
                seen.missed -= 1
                seen.see(px[row])
            elif usable[row]:
                self._seen.append(_Seen(names[row], boxes.labels[row], px[row]))
        self._seen = [one for one in self._seen if one.missed <= MOST_MISSED]
        return names

    def _by_track(self, boxes: Boxes, row: int, label_id: str) -> str:
        if boxes.track_ids is None or boxes.track_ids[row] < 0:
            return ""
        key = (boxes.labels[row], int(boxes.track_ids[row]))
        return self._tracked.setdefault(key, label_id)

    def _match(self, boxes: Boxes, px: Numbers, rows: Sequence[int]) -> dict[int, _Seen]:
        """Pair rows with objects so that the sum of overlaps is the largest."""
        if not rows or not self._seen:
            return {}
        expected = np.stack([one.expected_px() for one in self._seen])
        overlap = box_ious(px[list(rows)], expected)
        classes = np.array([boxes.labels[row] for row in rows])
        overlap[classes[:, None] != np.array([one.label for one in self._seen])[None]] = 0
        overlap[overlap < LEAST_IOU] = 0
        pairs = zip(*linear_sum_assignment(overlap, maximize=True), strict=True)
        return {rows[row]: self._seen[column] for row, column in pairs if overlap[row, column] > 0}
