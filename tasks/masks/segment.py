"""Masks for the boxes of a run of frames: one `LabeledFrame` per frame, failed ones included."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from sam2_core.frame_loop import FrameJob, FrameLoop
from sam2_core.preprocess import StagedFrame
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes, ImageArray, Masks
from tasks.errors import error_text
from tasks.frames.images import NotReadError
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef

UNSCORED = "invalid box: its score is not a finite number"


def segment_frames(
    segmenter: Segmenter,
    frames: Iterable[tuple[FrameRef, Boxes]],
    read_image: Callable[[FrameRef], ImageArray | StagedFrame],
    *,
    turn: AbstractContextManager[Any] | None = None,
) -> Iterator[LabeledFrame]:
    """Segment the boxes of frames, in order, with reading and mask encoding beside the device.

    Args:
        segmenter: a warm segmenter; threads that share it share a `turn`.
        frames: frames and their boxes; taken lazily.
        read_image: returns a frame as displayed, uint8 (H, W, 3) RGB, or staged for a device
            already; called on several threads.
        turn: held while the device is used; see `FrameLoop`.

    Yields:
        One `LabeledFrame` a frame; a frame that fails carries a `FrameFailure`, never an exception.
        A box whose score is no number has no mask, and the reason.

    Raises:
        MachineError: device, memory or disk failed; frames from there on have no outcome.

    """
    given: dict[Any, tuple[FrameRef, Boxes]] = {}

    def jobs() -> Iterator[FrameJob]:
        for number, (frame, boxes) in enumerate(frames):
            given[number] = (frame, boxes)
            yield FrameJob(number, lambda frame=frame: read_image(frame), _scored(boxes))  # type: ignore[misc]

    for result in FrameLoop(segmenter, jobs(), turn=turn):
        frame, boxes = given.pop(result.key)
        if result.size_hw != (0, 0):
            frame = replace(frame, size_hw=result.size_hw)
        if result.masks is not None:
            yield LabeledFrame(frame, boxes, _with_reasons(result.masks, boxes))
        else:
            # The stage has the same name where a detector reads the frame.
            stage = "decode" if result.stage == "read" else result.stage
            stage = "download" if isinstance(result.error, NotReadError) else stage
            reason = error_text(result.error) if result.error else "unknown"
            yield LabeledFrame(frame, boxes, None, FrameFailure.of(frame, stage, reason))


def _scored(boxes: Boxes) -> Boxes:
    """Return boxes for the model, which has no word about scores: without a number, no place."""
    known = np.isfinite(boxes.scores)
    if known.all():
        return boxes
    return replace(boxes, xyxy_px=np.where(known[:, None], boxes.xyxy_px, np.nan))


def _with_reasons(masks: Masks, boxes: Boxes) -> Masks:
    known = np.isfinite(boxes.scores).tolist()
    if all(known):
        return masks
    reasons = [old if good else UNSCORED for good, old in zip(known, masks.reasons, strict=True)]
    return replace(masks, reasons=tuple(reasons))
