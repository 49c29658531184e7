"""Boxes for frames, by a detector: images are read and scaled on threads ahead of it.

For a detector that would not see small objects in the whole, a frame is cut into tiles: it gets the
whole frame and N x N tiles, each a fifth larger than its share, so that what a border cuts is whole
in the next tile (as SAHI does: Akyon et al., Slicing Aided Hyper Inference, 2022). Boxes of all of
them are merged: of one object the best stays, and what a tile's border cut gives way to a box that
holds most of it.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sam2_core.machine import usable_cores
from sam2_core.preprocess import StagedFrame
from sam2_core.types import Boxes, FloatArray, ImageArray
from tasks.boxes.yolox import SAME_BOX_IOU, SAME_CLASS_IOU, AnyDetector, Letterboxed
from tasks.frames.images import load_frame
from tasks.types import FrameFailure, FrameRef

OVERLAP = 0.2
# A cut box is a part of another one that holds this share of it.
PART_SHARE = 0.6
_EDGE_PX = 2.0
OnRead = Callable[[FrameRef, StagedFrame], None]
OnFrame = Callable[[FrameRef, Boxes | FrameFailure], None]


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a frame, in pixels of the frame; right and bottom are the first beyond it."""

    left: int
    top: int
    right: int
    bottom: int

    def of(self, image: ImageArray) -> ImageArray:
        """Cut it out of an image, uint8 (H, W, 3)."""
        return np.ascontiguousarray(image[self.top : self.bottom, self.left : self.right])


Parts = list[tuple[Tile, Letterboxed]]


Part = tuple[FrameRef, Tile, Letterboxed]


def detect(
    frames: Iterable[FrameRef],
    detector: AnyDetector,
    classes: Sequence[str] = (),
    min_score: float = 0.3,
    on_frame: OnFrame | None = None,
    *,
    tiles: int = 1,
    on_read: OnRead | None = None,
) -> dict[int, Boxes | FrameFailure]:
    """Detect boxes on downloaded frames of one camera.

    Args:
        frames: with `local_path`.
        detector: a loaded one.
        classes: class names to keep; all when empty.
        min_score: least score of a box.
        on_frame: called with each frame when it is done.
        tiles: above 1, frames are looked at in tiles x tiles parts as well as in the whole.
        on_read: called on reader threads with each decoded frame, staged already if the detector
            is on a GPU.

    Returns:
        By frame index: boxes, best first, possibly none; or why the frame could not be read.

    Raises:
        AutolabelError: the detector does not know a class.

    """
    detector.class_mask(classes)
    outcomes: dict[int, Boxes | FrameFailure] = {}

    def finish(frame: FrameRef, outcome: Boxes | FrameFailure) -> None:
        outcomes[frame.index] = outcome
        if on_frame:
            on_frame(frame, outcome)

    def parts() -> Iterator[Part]:
        for frame, read in _read_ahead(frames, detector, tiles, on_read):
            if isinstance(read, FrameFailure):
                finish(frame, read)
            else:
                yield from ((frame, tile, image) for tile, image in read)

    found: list[tuple[Tile, Boxes]] = []  # in one frame, of which all parts come in one run
    for frame, tile, boxes in _detected(parts(), detector, classes, min_score):
        found.append((tile, boxes))
        if len(found) == (1 if tiles == 1 else tiles**2 + 1):
            finish(frame, merged(found))
            found = []
    return dict(sorted(outcomes.items()))


def _detected(
    parts: Iterator[Part], detector: AnyDetector, classes: Sequence[str], min_score: float
) -> Iterator[tuple[FrameRef, Tile, Boxes]]:
    """Detect in batches; while a device works on one, the next is put together."""
    queued: deque[tuple[list[Part], Callable[[], list[Boxes]]]] = deque()
    batches = iter(lambda: list(itertools.islice(parts, detector.batch)), [])
    for batch in itertools.chain(batches, [[]]):  # the empty one ends the wait for the last
        if batch:
            images = [image for _, _, image in batch]
            queued.append((batch, detector.start(images, classes, min_score)))
        while len(queued) > bool(batch):
            done, found = queued.popleft()
            for (frame, tile, _), boxes in zip(done, found(), strict=True):
                yield frame, tile, boxes


def _read_ahead(
    frames: Iterable[FrameRef], detector: AnyDetector, tiles: int, on_read: OnRead | None
) -> Iterator[tuple[FrameRef, Parts | FrameFailure]]:
    def read(frame: FrameRef) -> Parts | FrameFailure:
        loaded = load_frame(frame)
        if isinstance(loaded, FrameFailure):
            return loaded
        image = loaded[1]
        parts = [
            (tile, detector.letterbox(tile.of(image)))
            for tile in tiles_of(loaded[0].size_hw, tiles)
        ]
        if on_read:
            whole = parts[0][1].pixels
            on_read(frame, whole if isinstance(whole, StagedFrame) else StagedFrame(image))
        return parts

    readers = min(max(usable_cores() // 2, 2), 8)
    pending: deque[tuple[FrameRef, Future[Parts | FrameFailure]]] = deque()
    with ThreadPoolExecutor(readers, "detect-read") as pool:
        for frame in frames:
            pending.append((frame, pool.submit(read, frame)))
            if len(pending) >= 2 * readers:
                done, future = pending.popleft()
                yield done, future.result()
        for done, future in pending:
            yield done, future.result()


def tiles_of(size_hw: tuple[int, int], count: int) -> list[Tile]:
    """Return the whole of a frame and, for a count above 1, its count x count tiles."""
    height, width = size_hw
    whole = Tile(0, 0, width, height)
    if count == 1:
        return [whole]
    columns, rows = _spans(width, count), _spans(height, count)
    return [
        whole, *(Tile(left, top, right, bottom) for top, bottom in rows for left, right in columns)
    ]  # fmt: skip


def _spans(length: int, count: int) -> list[tuple[int, int]]:
    """Cut a length into equal parts that overlap."""
    share = length / (count - (count - 1) * OVERLAP)
    starts = [round(number * share * (1 - OVERLAP)) for number in range(count)]
    return [(start, min(round(start + share) + 1, length)) for start in starts]


def merged(found: Sequence[tuple[Tile, Boxes]]) -> Boxes:
    """Merge the boxes of a frame's tiles, best first.

    Args:
        found: each tile with its boxes, in pixels of the tile; the whole frame first.

    """
    if len(found) == 1:
        return found[0][1]
    whole = found[0][0]
    boxes = np.concatenate([_in_image_px(tile, boxes_of_tile) for tile, boxes_of_tile in found])
    scores = np.concatenate([rows.scores for _, rows in found])
    labels = np.array([label for _, rows in found for label in rows.labels], object)
    cut = np.concatenate([_cut(tile, boxes_of_tile, whole) for tile, boxes_of_tile in found])
    kept: list[int] = []
    # Whole ones first: a cut one is compared with all that may hold it.
    for row in np.lexsort((-scores, cut)).tolist():
        others = np.array(kept, np.int64)
        if len(others) and _is_known(row, others, boxes, labels, cut=bool(cut[row])):
            continue
        kept.append(row)
    order = sorted(kept, key=lambda row: (-scores[row], row))
    return Boxes(
        boxes[order], scores[order], tuple(labels[order].tolist()), None, found[0][1].source
    )


def _in_image_px(tile: Tile, boxes: Boxes) -> FloatArray:
    offset = np.array([tile.left, tile.top] * 2, np.float32)
    return np.asarray(boxes.xyxy_px + offset, np.float32)


def _cut(tile: Tile, boxes: Boxes, whole: Tile) -> npt.NDArray[np.bool_]:
    """Tell which boxes touch a border of their tile that is not the frame's."""
    height, width = tile.bottom - tile.top, tile.right - tile.left
    inner = np.array(
        [tile.left > 0, tile.top > 0, tile.right < whole.right, tile.bottom < whole.bottom]
    )
    distances = np.abs(boxes.xyxy_px - np.array([0, 0, width, height], np.float32))
    return np.asarray(((distances <= _EDGE_PX) & inner).any(axis=1))


def _is_known(
    row: int, others: npt.NDArray[np.int64], boxes: FloatArray, labels: npt.NDArray[np.object_],
    *, cut: bool,
) -> bool:  # fmt: skip
    """Whether a box is one of those that are kept, or a part of one of them."""
    low = np.maximum(boxes[row, :2], boxes[others, :2])
    high = np.minimum(boxes[row, 2:], boxes[others, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    own = float(np.prod(boxes[row, 2:] - boxes[row, :2]))
    theirs = np.prod(boxes[others, 2:] - boxes[others, :2], axis=1)
    iou = shared / np.maximum(own + theirs - shared, 1e-9)
    same = labels[others] == labels[row]
    known = (iou > SAME_BOX_IOU) | (same & (iou > SAME_CLASS_IOU))
    if cut:
        known |= same & (shared > PART_SHARE * max(own, 1e-9))
    return bool(known.any())
