"""All sightings of a camera sequence in columns: what tracking needs to know of each label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers
from tasks.store.tables import LabeledFrame
from tasks.tracks.shapes import WORDS, ShapeArray, shapes_of

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


def tracker_settings() -> dict[str, Any]:
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
        from trackforge import OCSORT

        numbers = np.full(len(labels), -1, np.int64)
        groups = [group_of(label) for label in labels]
        for group in groups:
            if group not in self._trackers:
                self._trackers[group] = OCSORT(
                    max_age=MOST_MISSED,
                    min_hits=1,  # every box is somebody's: none waits to be believed
                    iou_threshold=LEAST_IOU,
                    delta_t=DIRECTION_FRAMES,
                    inertia=DIRECTION_WEIGHT,
                )
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


_Columns: TypeAlias = tuple[IntArray, IntArray, Numbers, Numbers, ShapeArray]


@dataclass(frozen=True, eq=False)
class Sightings:
    """S labels of a camera sequence, frame after frame.

    Attributes:
        frame: int64 (S,), number of the frame in the sequence, failed ones counted.
        row: int64 (S,), of the label in its frame.
        given: int64 (S,), track id that came with the box, -1 for none.
        number: int64 (S,), what the tracker says; -1 where it was not asked.
        boxes_px: float64 (S, 4), zeros where there is no box with an area.
        scores: float64 (S,).
        shapes: uint64 (S, 16), masks in their boxes.
        labels: S classes.
        counts: labels of each frame.

    """

    frame: IntArray
    row: IntArray
    given: IntArray
    number: IntArray
    boxes_px: Numbers
    scores: Numbers
    shapes: ShapeArray
    labels: tuple[str, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        freeze_arrays(
            self, frame="int64 (S)", row="int64 (S)", given="int64 (S)", number="int64 (S)",
            boxes_px="float64 (S, 4)", scores="float64 (S)", shapes="uint64 (S, 16)",
            labels="tuple (S)",
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.frame)


def sightings_of(frames: Iterable[LabeledFrame]) -> Sightings:
    """Look at the frames of one camera in order, each once; masks are not kept."""
    none = np.zeros(0, np.int64)
    columns: list[_Columns] = [
        (none, none, np.zeros((0, 4)), np.zeros(0), np.zeros((0, WORDS), np.uint64))
    ]
    labels: list[str] = []
    associator = Associator()
    for one in frames:
        columns.append(_columns_of(one, associator))
        labels += one.boxes.labels
    given, number, boxes_px, scores, shapes = map(np.concatenate, zip(*columns, strict=True))
    counts = [len(part[0]) for part in columns[1:]]
    frame = np.repeat(np.arange(len(counts)), counts)
    row = np.arange(len(frame)) - (np.cumsum([0, *counts])[:-1])[frame]
    return Sightings(
        frame, row, given, number, boxes_px, scores, shapes, tuple(labels), tuple(counts)
    )


def _columns_of(one: LabeledFrame, associator: Associator) -> _Columns:
    """Columns of a frame's labels; the tracker is asked for those that no other tracker knows."""
    boxes, count = one.boxes, len(one.boxes)
    px = boxes.xyxy_px.astype(np.float64)
    usable = np.isfinite(px).all(axis=1) & (px[:, 0] < px[:, 2]) & (px[:, 1] < px[:, 3])
    px[~usable] = 0
    given = np.full(count, -1, np.int64) if boxes.track_ids is None else boxes.track_ids
    rows = np.flatnonzero(usable & (given < 0))
    number = np.full(count, -1, np.int64)
    scores = np.nan_to_num(boxes.scores.astype(np.float64), posinf=0, neginf=0)
    number[rows] = associator.number(px[rows], scores[rows], [boxes.labels[row] for row in rows])
    shapes = np.zeros((count, WORDS), np.uint64)
    if one.masks is not None and count:
        shapes = shapes_of(one.masks, px)
    return given, number, px, scores, shapes
