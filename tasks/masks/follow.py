"""Masks of objects that a detector misses for a few frames, carried there by SAM 2's memory.

Every chunk begins anew with its own detections, so its labels depend on nothing outside it. Masks
of detected boxes stay as the model draws them; what memory adds comes behind them as rows of its
own, with the class of the object's last detection.

Masks that the model is sure of are believed at once. Those that it doubts are believed between two
detections: that a later one joins the object is evidence that memory did not lose it. Objects that
the detector itself doubted each time are not followed: most of these are none.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import numpy as np

from sam2_core.backends.follow_backends import FollowBackend
from sam2_core.follow import Followed, Follower, FollowRules
from sam2_core.load import memory_sha256
from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.postprocess import finish
from sam2_core.types import Boxes, ImageArray, IntArray, LowResMasks, Masks
from tasks.masks.crops import bounds_of, masks_of
from tasks.masks.model import ModelChoice
from tasks.masks.rules import MaskRules, tidied
from tasks.store.tables import FOLLOWED, LabeledFrame
from tasks.types import FrameRef

# Masks that the model doubts are believed if a detection joins the object after so many frames at
# most: false objects come back later, if at all.
MOST_DOUBTED = 3
# Least score of an object's best detection so far.
LEAST_SCORE = 0.5
# An object is followed for so many frames after its last detection, then it ends.
MOST_UNDETECTED = 10
RULES = FollowRules(absent_frames=MOST_UNDETECTED + 1, undetected_frames=MOST_UNDETECTED + 1)
# Predicted IoU of a mask that is believed without a later detection: of `compact` on rendered
# drives as often on an object as detected ones.
LEAST_PREDICTED_IOU = 0.85
# Share of a mask that another label of the frame may cover; from there on they are one object.
MOST_COVERED = 0.5
# Share of a mask's largest piece below which others are dropped: specks on other objects, of which
# half of the boxes were a third too wide.
SPECKS = 0.05


def following_parameters(model: ModelChoice, chunk_frames: int) -> dict[str, Any]:
    """Return what decides the labels that following adds, for the stamp.

    Args:
        model: that follows.
        chunk_frames: frames of a chunk, where each begins anew.

    Raises:
        AutolabelError: the model, or what runs it, cannot follow objects.

    """
    memory = memory_sha256(model.source, model.backend, model.precision)
    return {"follow": {"memory": memory, "chunk_frames": chunk_frames}}


def follow_objects(
    backend: FollowBackend,
    frames: Sequence[FrameRef],
    labeled: Iterable[LabeledFrame],
    picture: Callable[[FrameRef], ImageArray],
) -> Iterator[LabeledFrame]:
    """Add to the labels of a chunk's frames those of objects that were detected before.

    Args:
        backend: of a model with a memory.
        frames: of the chunk, in order.
        labeled: frames with their detected boxes and masks, in that order; some may be missing.
        picture: gives the picture of a frame that was segmented, uint8 (H, W, 3) RGB.

    Yields:
        As many frames, with rows of followed objects behind their own.

    Raises:
        MachineError: device or memory failed.

    """
    chunk = _Chunk(backend)
    # Frames on which a gap may be open that a detection still closes.
    waiting = deque[tuple[LabeledFrame, _Undetected | None]]()
    order = iter(frame.index for frame in frames)
    for labeled_frame in labeled:
        for index in order:
            if index == labeled_frame.frame.index:
                break
            chunk.follower.skip()
        try:
            waiting.append((labeled_frame, chunk.see(labeled_frame, picture)))
        except Exception as error:
            if is_machine_error(error):
                raise as_machine_error(error, "following objects") from error
            raise
        if len(waiting) > MOST_DOUBTED:
            yield chunk.with_followed(*waiting.popleft())
    yield from starmap(chunk.with_followed, waiting)


def finished(low_res: LowResMasks, size_hw: tuple[int, int]) -> Masks:
    """Return masks of memory at the size of their image, without specks."""
    return tidied(finish(low_res, size_hw), Boxes.empty(), MaskRules(clean=SPECKS))


def with_boxes_around(labeled: LabeledFrame) -> LabeledFrame:
    """Put the boxes of followed objects around their masks: again where rules change these."""
    if labeled.masks is None or not labeled.followed:
        return labeled
    rows = np.flatnonzero(labeled.masks.area_px)
    rows = rows[rows >= labeled.detected]
    xyxy_px = labeled.boxes.xyxy_px.copy()
    rle = labeled.masks.chosen(rows).rle
    xyxy_px[rows] = bounds_of(masks_of(rle, labeled.masks.size_hw))
    return replace(labeled, boxes=replace(labeled.boxes, xyxy_px=xyxy_px))


@dataclass(frozen=True, eq=False)
class _Undetected:
    """Objects that are present on a frame without a detection, the last detected ones first.

    Attributes:
        frame: number of the frame in the chunk.
        tracks: names of the objects.
        boxes: what the last detections before the frame say; NaN until `with_boxes_around`. A
            track id is -1 where none was given.
        masks: by memory.
        ages: frames since the last detections.

    """

    frame: int
    tracks: Sequence[int]
    boxes: Boxes
    masks: Masks
    ages: IntArray


class _Chunk:
    """What is known of the objects of a chunk, frame after frame."""

    def __init__(self, backend: FollowBackend) -> None:
        self.follower = Follower(backend, RULES)
        # Class, score, given track id (-1: none) and frame of each object's last detection.
        self._last: dict[int, tuple[str, float, int, int]] = {}
        self._sure: set[int] = set()  # objects that the detector was sure of once
        # Objects, and frames of detections that were soon followed by another.
        self._closed: set[tuple[int, int]] = set()

    def see(
        self, labeled: LabeledFrame, picture: Callable[[FrameRef], ImageArray]
    ) -> _Undetected | None:
        """Go to a frame and return the objects that were not detected on it, if there are any."""
        if labeled.masks is None:
            self.follower.skip()
            return None
        boxes = labeled.boxes
        prompts = np.where(np.isfinite(boxes.scores)[:, None], boxes.xyxy_px, np.nan)
        shown = self.follower.step(picture(labeled.frame), prompts)
        frame, given = self.follower.frame, boxes.track_ids
        ids = [-1] * len(boxes) if given is None else given.tolist()
        names = shown.tracks.tolist()
        for name, row in zip(names, shown.detections.tolist(), strict=True):
            if row >= 0:
                score = float(boxes.scores[row])
                if score >= LEAST_SCORE:
                    self._sure.add(name)
                if name in self._last and frame - self._last[name][-1] <= MOST_DOUBTED + 1:
                    self._closed.add((name, self._last[name][-1]))
                self._last[name] = boxes.labels[row], score, ids[row], frame
        rows = self._candidates(shown, ids if given is not None else [])
        if not rows:
            return None
        masks = finished(shown.chosen(rows), labeled.masks.size_hw)
        tracks = [names[row] for row in rows]
        labels, scores, ids, _ = zip(*(self._last[name] for name in tracks), strict=True)
        made = Boxes(
            np.full((len(rows), 4), np.nan, np.float32), np.array(scores, np.float32), labels,
            np.array(ids, np.int64), FOLLOWED,
        )  # fmt: skip
        return _Undetected(frame, tracks, made, masks, shown.undetected_frames[rows])

    def with_followed(self, labeled: LabeledFrame, there: _Undetected | None) -> LabeledFrame:
        """Add to a frame the objects that are believed to be there."""
        if there is None or labeled.masks is None:
            return labeled
        before = (there.frame - there.ages).tolist()
        closed = [gap in self._closed for gap in zip(there.tracks, before, strict=True)]
        rows = np.flatnonzero((there.masks.predicted_iou >= LEAST_PREDICTED_IOU) | closed)
        rows = rows[_uncovered(there.masks.chosen(rows), labeled.masks)]
        if not len(rows):
            return labeled
        more = there.boxes.chosen(rows)
        if more.track_ids is not None and (more.track_ids < 0).any():
            more = replace(more, track_ids=None)
        added = labeled.with_more(more, there.masks.chosen(rows))
        return with_boxes_around(replace(added, followed=tuple(there.ages[rows].tolist())))

    def _candidates(self, shown: Followed, given: Sequence[int]) -> list[int]:
        """Choose present objects without a detection, those first that were detected last.

        Where the frame's boxes have track ids, an object needs one that is not among them.
        """
        there = (shown.detections < 0) & (shown.undetected_frames > 0) & (shown.object_score > 0)
        there &= (  # others can be believed no more
            (shown.predicted_iou >= LEAST_PREDICTED_IOU) | (shown.undetected_frames <= MOST_DOUBTED)
        )
        order = np.lexsort((shown.tracks, shown.undetected_frames))
        names = shown.tracks.tolist()
        taken = {*given, -1} if given else set()
        return [
            int(i) for i in order
            if there[i] and names[i] in self._sure and self._last[names[i]][2] not in taken
        ]  # fmt: skip


def _uncovered(made: Masks, own: Masks) -> list[int]:
    """Rows of masks that are not empty, and that no other of the frame covers."""
    there, found = (masks_of(masks.rle, masks.size_hw) for masks in (own, made))
    kept: list[int] = []
    for row in np.flatnonzero(made.area_px).tolist():
        mask = found[row]
        # The share of the mask that each of the others covers.
        if all((mask & other).area() < MOST_COVERED * mask.area() for other in there):
            there.append(mask)
            kept.append(row)
    return kept
