"""What became of a sequence: its report, made of its frames. `manifests` writes it and reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import FloatArray
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef

LISTED_FRAMES = 100
# No boxes between two frames with at least so many: the detector probably missed them.
BOXES_OF_NEIGHBOURS = 3
LOW_PREDICTED_IOU = 0.5


@dataclass(frozen=True, eq=False)
class Seen:
    """What a report needs of a frame; masks are not kept.

    Attributes:
        frame: which.
        failure: why it has no labels, None when it has.
        labels: class of every box.
        rejected: reasons of the masks that were refused.
        predicted_iou: float32 (M,), of the masks that are not empty.
        stability: float32 (M,), likewise.

    """

    frame: FrameRef
    failure: FrameFailure | None
    labels: tuple[str, ...]
    rejected: tuple[str, ...]
    predicted_iou: FloatArray
    stability: FloatArray

    def __post_init__(self) -> None:
        freeze_arrays(self, predicted_iou="float32 (M)", stability="float32 (M)")

    @staticmethod
    def of(one: LabeledFrame) -> Seen:
        """Keep of a labeled frame what a report needs."""
        nothing = np.zeros(0, np.float32)
        if one.masks is None:
            return Seen(one.frame, one.failure, (), (), nothing, nothing)
        good = np.flatnonzero(one.masks.area_px)
        return Seen(
            one.frame,
            None,
            one.boxes.labels,
            tuple(reason for reason in one.masks.reasons if reason),
            one.masks.predicted_iou[good],
            one.masks.stability[good],
        )

    def named(self, reason: str) -> dict[str, Any]:
        """Say which frame is worth a look, and why."""
        frame = self.frame
        return {"camera": frame.camera, "index": frame.index, "uri": frame.uri, "reason": reason}


def report_of(frames: Iterable[Seen]) -> dict[str, Any]:
    """Count a sequence's outcomes and point at frames worth a look.

    Args:
        frames: every frame of the sequence, failed ones too, camera by camera in order.

    Returns:
        Plain JSON values: `frames`, `failed`, `frames_without_boxes`, `instances`, `masks` (those
        that are not empty), `mean_predicted_iou`, `mean_stability`, counts by `cameras`,
        `classes`, `failures` ("stage: reason") and `rejected` (masks' reasons), and the first
        `failed_frames` and `suspicious_frames`, each with camera, index, uri and reason.

    """
    seen = list(frames)
    failed = [one for one in seen if one.failure]
    masks = sum(len(one.predicted_iou) for one in seen)
    return {
        "frames": len(seen),
        "failed": len(failed),
        "frames_without_boxes": sum(not one.labels and not one.failure for one in seen),
        "instances": sum(len(one.labels) for one in seen),
        "masks": masks,
        "mean_predicted_iou": _mean([one.predicted_iou for one in seen]),
        "mean_stability": _mean([one.stability for one in seen]),
        "cameras": _counted(one.frame.camera for one in seen),
        "classes": _counted(label for one in seen for label in one.labels),
        "failures": _counted(_kind(one) for one in failed),
        "rejected": _counted(reason for one in seen for reason in one.rejected),
        "failed_frames": [one.named(_kind(one)) for one in failed[:LISTED_FRAMES]],
        "suspicious_frames": list(_suspicious(seen))[:LISTED_FRAMES],
    }


def _mean(parts: list[FloatArray]) -> float | None:
    values = np.concatenate([np.zeros(0, np.float32), *parts])
    return round(float(values.mean()), 4) if len(values) else None


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _kind(one: Seen) -> str:
    """Stage and reason of a failure, without the frame's address, so that equal ones add up."""
    if one.failure is None:
        return ""
    return f"{one.failure.stage}: {one.failure.reason.replace(one.frame.uri, 'the frame')}"


def _suspicious(seen: Sequence[Seen]) -> Iterator[dict[str, Any]]:
    for _, group in groupby(seen, key=lambda one: one.frame.camera):
        frames = [one for one in group if not one.failure]
        sizes = Counter(one.frame.size_hw for one in frames)
        for number, one in enumerate(frames):
            usual = sizes.most_common(1)[0][0]
            around = frames[max(0, number - 1) : number] + frames[number + 1 : number + 2]
            busy = [len(other.labels) >= BOXES_OF_NEIGHBOURS for other in around]
            if one.frame.size_hw != usual:
                yield one.named(f"{one.frame.size_hw} pixels where {usual} is usual")
            elif len(one.predicted_iou) and one.predicted_iou.mean() < LOW_PREDICTED_IOU:
                yield one.named(f"mean predicted IoU {one.predicted_iou.mean():.2f}")
            elif not one.labels and busy == [True, True]:
                yield one.named("no boxes, though the frames before and after have several")
