"""Frames in which a detector lost an object for a moment: where it must have been."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers
from tasks.tracks.shapes import ShapeArray, agreements, placed_ious
from tasks.tracks.sightings import Sightings
from tasks.wording import counted

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

    def why_not_by(self, shape: ShapeArray, predicted_iou: float) -> str:
        """Why a mask in the gap's box, uint64 (16,), is not taken for the object's; "" if it is."""
        if not shape.any():
            return "no mask there"
        both = agreements(np.stack([shape, shape]), np.stack([self.before, self.after]))
        if not (both >= LEAST_AGREEMENT).all():
            return "mask unlike those before and after"
        if predicted_iou < LEAST_PREDICTED_IOU:
            return "the model doubts its mask"
        count = len(self.others)
        placed = np.tile(shape, (count, 1)), np.tile(self.box_px, (count, 1))
        covered = (placed_ious(self.others, self.others_px, *placed) >= MOST_COVERED_IOU).any()
        return "another label is there" if covered else ""


def gaps_of(
    seen: Sightings, chains: IntArray, ids: IntArray, labels: list[str], at_most: int
) -> tuple[list[Gap], Counter[str]]:
    """Find the gaps of at most so many frames, in the order of frames and ids.

    Returns:
        The gaps, and how many missing masks have none, by reason.

    """
    order = np.lexsort((np.arange(len(chains)), chains))
    one, other = order[:-1], order[1:]
    steps = seen.frame[other] - seen.frame[one]
    lost = (chains[one] == chains[other]) & (steps > 1)
    short = lost & (steps <= at_most + 1)
    between = seen.shapes[one].any(axis=1) & seen.shapes[other].any(axis=1)
    longer = f"lost for more than {counted(at_most, 'frame')}"
    missing = {longer: lost & ~short, "no mask before or after": short & ~between}
    passed = Counter({reason: int((steps - 1)[rows].sum()) for reason, rows in missing.items()})
    short &= between
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
    return sorted(found, key=lambda gap: (gap.frame, gap.track_id, gap.label)), +passed
