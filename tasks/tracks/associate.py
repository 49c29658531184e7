"""Boxes to objects, frame after frame: OC-SORT, by the package `trackforge`.

It follows each object by its own motion (a Kalman filter that is mended when an object is seen
again) and gives an id to every box. Classes that detectors take for each other share a tracker, so
that an object keeps its id when the detector changes its mind; others never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers

# A detector may lose an object for so many frames; longer, its motion says little of its place.
MOST_MISSED = 30
LEAST_IOU = 0.1  # of a box with where its object is expected; with 0.3 fast ones are lost
DIRECTION_FRAMES, DIRECTION_WEIGHT = 3, 0.2  # of OC-SORT's paper
_ALIKE = (
    frozenset({"car", "truck", "bus", "van", "trailer", "train", "vehicle"}),
    frozenset({"person", "pedestrian", "rider", "cyclist"}),
    frozenset({"bicycle", "motorcycle", "motorbike", "bike", "scooter"}),
    frozenset({"traffic sign", "stop sign"}),
)


def settings() -> dict[str, Any]:
    """Return what made the ids, as plain JSON values."""
    from importlib.metadata import version

    return {
        "tracker": f"trackforge OC-SORT {version('trackforge')}",
        "most_missed": MOST_MISSED,
        "least_iou": LEAST_IOU,
        "direction": [DIRECTION_FRAMES, DIRECTION_WEIGHT],
    }


def group_of(label: str) -> str:
    """Name of the classes among which an object may change."""
    name = label.strip().lower()
    return next((min(group) for group in _ALIKE if name in group), name)


class Associator:
    """Gives numbers to the boxes of one camera's frames, in their order."""

    def __init__(self) -> None:
        """Start before the first frame."""
        self._trackers: dict[str, Any] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def number(self, boxes_xyxy_px: Numbers, scores: Numbers, labels: Sequence[str]) -> IntArray:
        """Give numbers to the boxes of the next frame; one without boxes counts, too.

        Args:
            boxes_xyxy_px: float (N, 4), each with an area.
            scores: float (N,).
            labels: N classes.

        Returns:
            int64 (N,), equal for boxes of one object.

        """
        numbers = np.full(len(labels), -1, np.int64)
        groups = [group_of(label) for label in labels]
        for group in groups:
            if group not in self._trackers:
                self._trackers[group] = _tracker()
        for group, tracker in self._trackers.items():
            rows = [row for row, name in enumerate(groups) if name == group]
            left, top, right, bottom = boxes_xyxy_px[rows].T.tolist() if rows else ([],) * 4
            seen = [
                ([x0, y0, x1 - x0, y1 - y0], float(scores[row]), 0)
                for x0, y0, x1, y1, row in zip(left, top, right, bottom, rows, strict=True)
            ]
            for found, _, _, _, place in tracker.update(seen):
                key = (group, int(found))
                numbers[rows[place]] = self._numbers.setdefault(key, len(self._numbers))
        return numbers


def _tracker() -> Any:
    from trackforge import OCSORT

    return OCSORT(
        max_age=MOST_MISSED,
        min_hits=1,  # every box is somebody's: none waits to be believed
        iou_threshold=LEAST_IOU,
        delta_t=DIRECTION_FRAMES,
        inertia=DIRECTION_WEIGHT,
    )
