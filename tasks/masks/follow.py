"""Masks of objects that a detector misses for a few frames, carried there by SAM 2's memory.

Every chunk begins anew with its own detections, so its labels depend on nothing outside it. Masks
of detected boxes stay as the model draws them; what memory adds comes behind them as rows of its
own, with the class of the object's last detection.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from sam2_core.backends.follow_backends import FollowBackend
from sam2_core.decisive_code import following_modules, source_digest
from sam2_core.follow import Followed, Follower, FollowRules
from sam2_core.load import memory_sha256
from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.postprocess import finish
from sam2_core.types import Boxes, ImageArray, Masks
from tasks.masks.crops import segments_of
from tasks.masks.model import ModelChoice
from tasks.store.tables import FOLLOWED, LabeledFrame
from tasks.types import FrameRef

# An object is followed for so many frames after its last detection, then it ends.
MOST_UNDETECTED = 10
RULES = FollowRules(absent_frames=MOST_UNDETECTED + 1, undetected_frames=MOST_UNDETECTED + 1)
# Predicted IoU of a mask that is believed: of `compact` as often on an object as detected ones.
LEAST_PREDICTED_IOU = 0.85
# Share of a mask that another label of the frame may cover; from there on they are one object.
MOST_COVERED = 0.5
_CODE = ("tasks.masks.follow", "tasks.masks.crops")


def following_parameters(model: ModelChoice) -> dict[str, Any]:
    """Return what decides the labels that following adds, for the stamp.

    Raises:
        AutolabelError: the model, or what runs it, cannot follow objects.

    """
    code = source_digest((*_CODE, *following_modules()))
    memory = memory_sha256(model.source, model.backend, model.precision)
    return {"follow": {"code": code, "memory": memory}}


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
    order = iter(frame.index for frame in frames)
    for one in labeled:
        for index in order:
            if index == one.frame.index:
                break
            chunk.follower.skip()
        try:
            yield chunk.add(one, picture)
        except Exception as error:
            if is_machine_error(error):
                raise as_machine_error(error, "following objects") from error
            raise


class _Chunk:
    """What is known of the objects of a chunk, frame after frame."""

    def __init__(self, backend: FollowBackend) -> None:
        self.follower = Follower(backend, RULES)
        # Class, score and given track id (-1: none) of each object's last detection.
        self._last: dict[int, tuple[str, float, int]] = {}

    def add(self, one: LabeledFrame, picture: Callable[[FrameRef], ImageArray]) -> LabeledFrame:
        """Go to a frame and return it with the objects that were not detected on it."""
        if one.masks is None:
            self.follower.skip()
            return one
        boxes = one.boxes
        prompts = np.where(np.isfinite(boxes.scores)[:, None], boxes.xyxy_px, np.nan)
        shown = self.follower.step(picture(one.frame), prompts)
        given = boxes.track_ids
        ids = [-1] * len(boxes) if given is None else given.tolist()
        known = list(zip(boxes.labels, boxes.scores.tolist(), ids, strict=True))
        pairs = list(zip(shown.tracks.tolist(), shown.detections.tolist(), strict=True))
        self._last = {track: known[row] if row >= 0 else self._last[track] for track, row in pairs}
        rows = self._believed(shown, ids if given is not None else [])
        made = finish(shown.chosen(rows), one.masks.size_hw)
        kept = _uncovered(made, one.masks)
        if not kept:
            return one
        masks = made.chosen(kept)
        rows = [rows[row] for row in kept]
        labels, scores, ids = zip(*(self._last[pairs[row][0]] for row in rows), strict=True)
        bounds = segments_of(masks.rle, masks.size_hw).bounds_xyxy_px()
        more = Boxes(
            bounds.astype(np.float32), np.array(scores, np.float32), labels,
            None if -1 in ids else np.array(ids, np.int64), FOLLOWED,
        )  # fmt: skip
        undetected = shown.undetected_frames[rows].tolist()
        return replace(one.with_more(more, masks), followed=tuple(undetected))

    def _believed(self, shown: Followed, given: Sequence[int]) -> list[int]:
        """Choose objects without a detection, those first that were detected last.

        Where the frame's boxes have track ids, an object needs one that is not among them.
        """
        good = (
            (shown.detections < 0) & (shown.undetected_frames > 0)
            & (shown.object_score > 0) & (shown.predicted_iou >= LEAST_PREDICTED_IOU)
        )  # fmt: skip
        order = np.lexsort((shown.tracks, shown.undetected_frames))
        names = shown.tracks.tolist()
        taken = {*given, -1} if given else set()
        return [int(i) for i in order if good[i] and self._last[names[i]][2] not in taken]


def _uncovered(made: Masks, own: Masks) -> list[int]:
    """Rows of masks that are not empty, and that no other of the frame covers."""
    height, width = made.size_hw

    def runs(masks: Masks, rows: Iterable[int]) -> list[dict[str, Any]]:
        return [{"size": [height, width], "counts": masks.rle[row]} for row in rows]

    there = runs(own, np.flatnonzero(own.area_px))
    kept: list[int] = []
    for row in np.flatnonzero(made.area_px).tolist():
        (mask,) = runs(made, [row])
        # The share of the mask that each of the others covers.
        if not there or coco_mask.iou([mask], there, [1] * len(there)).max() < MOST_COVERED:
            there.append(mask)
            kept.append(row)
    return kept
