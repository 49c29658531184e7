"""All sightings of a camera sequence in columns: what tracking needs to know of each label."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers
from tasks.store.tables import LabeledFrame
from tasks.tracks.associate import Associator
from tasks.tracks.shapes import WORDS, ShapeArray, shapes_of

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
