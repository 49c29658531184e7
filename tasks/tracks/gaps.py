"""Frames in which a detector lost an object for a moment: where it must have been."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers
from tasks.tracks.shapes import ShapeArray, agreements, placed_iou
from tasks.tracks.sightings import Sightings

# A mask is believed that agrees so well with the ones before and after, box laid on box, of which
# the model thinks so well, and that covers no other label so far.
LEAST_AGREEMENT, LEAST_PREDICTED_IOU, MOST_COVERED_IOU = 0.8, 0.75, 0.5


@dataclass(frozen=True, eq=False)
class Gap:
    """An object in a frame where it was not found, between two where it was.

    Attributes:
        frame: number of the frame in the sequence.
        track_id: of the object.
        label: class of the object.
        score: the lower one of the two sightings'.
        box_px: float64 (4,), between the two.
        before: uint64 (16,), the last mask before the gap, in its box.
        after: uint64 (16,), the first mask after it.
        others_px: float64 (K, 4), boxes of the frame's labels.
        others: uint64 (K, 16), their masks.

    """

    frame: int
    track_id: int
    label: str
    score: float
    box_px: Numbers
    before: ShapeArray
    after: ShapeArray
    others_px: Numbers
    others: ShapeArray

    def __post_init__(self) -> None:
        freeze_arrays(
            self, box_px="float64 (4)", before="uint64 (16)", after="uint64 (16)",
            others_px="float64 (K, 4)", others="uint64 (K, 16)",
        )  # fmt: skip

    def is_filled_by(self, shape: ShapeArray, predicted_iou: float) -> bool:
        """Whether a mask in the gap's box, uint64 (16,), is the object's."""
        both = agreements(np.stack([shape, shape]), np.stack([self.before, self.after]))
        good = shape.any() and (both >= LEAST_AGREEMENT).all()
        if not good or predicted_iou < LEAST_PREDICTED_IOU:
            return False
        pairs = zip(self.others, self.others_px, strict=True)
        return all(
            placed_iou(other, box, shape, self.box_px) < MOST_COVERED_IOU for other, box in pairs
        )


def gaps_of(
    seen: Sightings, chains: IntArray, ids: IntArray, labels: list[str], at_most: int
) -> list[Gap]:
    """Find the gaps of at most so many frames, in the order of frames and ids."""
    order = np.lexsort((np.arange(len(chains)), chains))
    one, other = order[:-1], order[1:]
    steps = seen.frame[other] - seen.frame[one]
    short = (chains[one] == chains[other]) & (steps > 1) & (steps <= at_most + 1)
    short &= seen.shapes[one].any(axis=1) & seen.shapes[other].any(axis=1)
    edges = np.cumsum([0, *seen.counts])
    found = []
    for first, second, frames in zip(one[short], other[short], steps[short], strict=True):
        for step in range(1, int(frames)):
            part, frame = step / frames, int(seen.frame[first]) + step
            box = (1 - part) * seen.boxes_px[first] + part * seen.boxes_px[second]
            score = float(min(seen.scores[first], seen.scores[second]))
            there = slice(int(edges[frame]), int(edges[frame + 1]))
            found.append(
                Gap(
                    frame, int(ids[first]), labels[first], score, box, seen.shapes[first],
                    seen.shapes[second], seen.boxes_px[there], seen.shapes[there],
                )
            )  # fmt: skip
    return sorted(found, key=lambda gap: (gap.frame, gap.track_id, gap.label))
