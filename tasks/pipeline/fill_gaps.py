"""Masks for objects that were lost for a few frames: prompted by where they must have been."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sam2_core.types import Boxes, Masks
from tasks.frames.identity import is_file_here
from tasks.masks.rules import tidied
from tasks.pipeline.outcome import NotFetchedError
from tasks.pipeline.run_context import DeviceTurn, Job
from tasks.store import storage
from tasks.store.tables import LabeledFrame
from tasks.tracks.linking import Gap, shapes_of
from tasks.types import FrameRef

INTERPOLATED = "interpolated"


@dataclass(frozen=True, eq=False)
class Filled:
    """The masks that were found in a frame's gaps.

    Attributes:
        frame: which.
        gaps: those that are filled.
        boxes: one for each.
        masks: one for each.

    """

    frame: FrameRef
    gaps: Sequence[Gap]
    boxes: Boxes
    masks: Masks


def fill_gaps(job: Job, gaps: Iterable[tuple[FrameRef, Gap]]) -> tuple[list[Filled], Counter[str]]:
    """Prompt frames with the boxes of their gaps and keep the masks that fit before and after.

    A frame whose picture is another one by now, or cannot be read, stays as it is.

    Args:
        job: what every step knows.
        gaps: with their frames, in the order of frames.

    Returns:
        The masks that fit, and how many gaps stay as they are, by reason.

    Raises:
        NotFetchedError: a picture cannot be had: what is made now would differ from what is made
            when it can.

    """
    from tasks.frames.images import read_image
    from tasks.masks.segment import segment_frames

    by_frame: dict[FrameRef, list[Gap]] = {}
    for frame, gap in gaps:
        by_frame.setdefault(frame, []).append(gap)
    why_not: Counter[str] = Counter()
    if not by_frame:
        return [], why_not
    todo = [(there, _boxes(by_frame[frame])) for frame, there in _here(by_frame)]
    of_frame = {(frame.camera, frame.index): several for frame, several in by_frame.items()}
    turn = DeviceTurn(job.context.device)
    labeled = segment_frames(job.context.segmenters.load(job.model), todo, read_image, turn=turn)
    made = [
        _believed(job, frame, of_frame.pop((frame.frame.camera, frame.frame.index)), why_not)
        for frame in labeled
    ]
    why_not["the picture is another one by now"] += sum(map(len, of_frame.values()))
    return [filled for filled in made if filled], +why_not


def _here(frames: Iterable[FrameRef]) -> Iterator[tuple[FrameRef, FrameRef]]:
    """Bring the pictures of frames here; yields each frame as it is stored and with its file."""
    from tasks.dataset.recorded_frames import find_pictures

    wanted = list(frames)
    pictures = find_pictures(wanted)
    for frame in wanted:
        if frame.uri in pictures.changed:
            continue
        local = str(storage.local_path(frame.uri)) if is_file_here(frame.uri) else ""
        path = pictures.paths.get(frame.uri, local)
        if not path:
            raise NotFetchedError(
                f"{storage.redact(frame.uri)} cannot be fetched, and fill_gaps needs it: run again"
            )
        yield frame, replace(frame, local_path=path)


def _boxes(gaps: Sequence[Gap]) -> Boxes:
    px = np.stack([gap.box_px for gap in gaps]).astype(np.float32)
    scores = np.array([gap.score for gap in gaps], np.float32)
    return Boxes(px, scores, tuple(gap.label for gap in gaps), source=INTERPOLATED)


def _believed(
    job: Job, made: LabeledFrame, gaps: Sequence[Gap], why_not: Counter[str]
) -> Filled | None:
    """Keep the masks of a frame that fit; counts the others in `why_not`."""
    if made.masks is None:
        why_not["the picture cannot be read"] += len(gaps)
        return None
    masks = tidied(made.masks, made.boxes, job.rules)
    shapes = shapes_of(masks, made.boxes.xyxy_px.astype(np.float64))
    reasons = [
        gap.why_not_by(shapes[row], float(masks.predicted_iou[row])) for row, gap in enumerate(gaps)
    ]
    why_not.update(filter(None, reasons))
    rows = [row for row, reason in enumerate(reasons) if not reason]
    if not rows:
        return None
    frame = replace(made.frame, local_path="")
    boxes, masks = made.boxes.chosen(rows), masks.chosen(rows)
    return Filled(frame, [gaps[row] for row in rows], boxes, masks)
