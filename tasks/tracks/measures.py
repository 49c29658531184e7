"""How steady the labels of a sequence are over time, without any truth."""

from __future__ import annotations

from typing import Any

import numpy as np

from sam2_core.types import IntArray
from tasks.tracks.shapes import agreements
from tasks.tracks.sightings import Sightings

# Masks of successive frames that agree less, once their boxes lie on each other, flicker.
STEADY = 0.75
SHORT_GAP_FRAMES = 3


def measured(seen: Sightings, chains: IntArray) -> dict[str, Any]:
    """Measure a camera sequence.

    Args:
        seen: its labels.
        chains: int64 (S,), equal for labels of one object.

    Returns:
        `labels`; `tracks` that have a mask; `pairs` of an object's masks in successive frames,
        their `agreement` (the mean IoU after their boxes were laid on each other) and how many
        `flicker` (agree less than 0.75); `gaps` of at most 3 frames within tracks and `gap_frames`
        in them; and `class_changes` along tracks.

    """
    order = np.lexsort((np.arange(len(chains)), chains))
    one, other = order[:-1], order[1:]
    same = chains[one] == chains[other]
    one, other = one[same], other[same]
    steps = seen.frame[other] - seen.frame[one]
    masks = seen.shapes[one].any(axis=1) & seen.shapes[other].any(axis=1)
    beside = (steps == 1) & masks
    agree = agreements(seen.shapes[one[beside]], seen.shapes[other[beside]])
    short = (steps > 1) & (steps <= SHORT_GAP_FRAMES + 1)
    labels = np.array(seen.labels, object)
    return {
        "labels": len(seen),
        "tracks": len(set(chains[seen.shapes.any(axis=1)].tolist())),
        "pairs": len(agree),
        "agreement": round(float(agree.mean()), 4) if len(agree) else None,
        "flicker": int((agree < STEADY).sum()),
        "gaps": int(short.sum()),
        "gap_frames": int((steps[short] - 1).sum()),
        "class_changes": int((labels[one] != labels[other]).sum()),
    }
