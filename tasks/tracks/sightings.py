"""All sightings of a camera sequence in columns: what tracking needs to know of each label."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers
from tasks.store.tables import LabeledFrame
from tasks.tracks.associate import Associator
from tasks.tracks.shapes import WORDS, ShapeArray, shapes_of


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


@dataclass
class _Columns:
    number: list[IntArray] = field(default_factory=list)
    given: list[IntArray] = field(default_factory=list)
    boxes_px: list[Numbers] = field(default_factory=list)
    scores: list[Numbers] = field(default_factory=list)
    shapes: list[ShapeArray] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def sightings_of(frames: Iterable[LabeledFrame]) -> Sightings:
    """Look at the frames of one camera in order, each once; masks are not kept."""
    columns, counts, associator = _Columns(), [], Associator()
    for one in frames:
        counts.append(len(one.boxes))
        _add(columns, one, associator)
    total = sum(counts)
    starts = np.cumsum([0, *counts[:-1]]) if counts else np.zeros(0, np.int64)
    return Sightings(
        np.repeat(np.arange(len(counts)), counts),
        np.arange(total) - np.repeat(starts, counts),
        np.concatenate([np.zeros(0, np.int64), *columns.given]),
        np.concatenate([np.zeros(0, np.int64), *columns.number]),
        np.concatenate([np.zeros((0, 4)), *columns.boxes_px]),
        np.concatenate([np.zeros(0), *columns.scores]),
        np.concatenate([np.zeros((0, WORDS), np.uint64), *columns.shapes]),
        tuple(columns.labels),
        tuple(counts),
    )


def _add(columns: _Columns, one: LabeledFrame, associator: Associator) -> None:
    """Add a frame's labels; the tracker is asked for those that no other tracker knows."""
    boxes, count = one.boxes, len(one.boxes)
    px = boxes.xyxy_px.astype(np.float64)
    usable = np.isfinite(px).all(axis=1) & (px[:, 0] < px[:, 2]) & (px[:, 1] < px[:, 3])
    px[~usable] = 0
    given = np.full(count, -1, np.int64) if boxes.track_ids is None else boxes.track_ids
    rows = np.flatnonzero(usable & (given < 0))
    numbers = np.full(count, -1, np.int64)
    scores = np.nan_to_num(boxes.scores.astype(np.float64), posinf=0, neginf=0)
    names = [boxes.labels[row] for row in rows]
    numbers[rows] = associator.number(px[rows], scores[rows], names)
    shapes = np.zeros((count, WORDS), np.uint64)
    if one.masks is not None and count:
        shapes = shapes_of(one.masks, px)
    columns.number.append(numbers)
    columns.given.append(given)
    columns.boxes_px.append(px)
    columns.scores.append(scores)
    columns.shapes.append(shapes)
    columns.labels.extend(boxes.labels)
