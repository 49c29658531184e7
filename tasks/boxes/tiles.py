"""A frame in overlapping tiles, for a detector that would not see small objects in the whole.

The detector gets the whole frame and N x N tiles, each a fifth larger than its share, so that what
a border cuts is whole in the next tile (as SAHI does: Akyon et al., Slicing Aided Hyper Inference,
2022). Boxes of all of them are merged: of one object the best stays, and what a tile's border cut
gives way to a box that holds most of it. `suppressed` does so with the boxes of one picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.types import Boxes, FloatArray, ImageArray

OVERLAP = 0.2
# Two boxes of one class that overlap by more are one object, of any class those that are one box: a
# pick-up is no car and truck.
SAME_CLASS_IOU, SAME_BOX_IOU = 0.45, 0.85
# A cut box is a part of another one that holds this share of it.
PART_SHARE = 0.6
_EDGE_PX = 2.0
Indices = np.ndarray[Any, np.dtype[np.int64]]


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


def tiles_of(size_hw: tuple[int, int], count: int) -> list[Tile]:
    """Return the whole of a frame and, for a count above 1, its count x count tiles."""
    height, width = size_hw
    whole = Tile(0, 0, width, height)
    if count == 1:
        return [whole]
    columns, rows = _spans(width, count), _spans(height, count)
    tiles = [
        Tile(left, top, right, bottom) for top, bottom in rows for left, right in columns
    ]  # fmt: skip
    return [whole, *tiles]


def _spans(length: int, count: int) -> list[tuple[int, int]]:
    """Cut a length into equal parts that overlap."""
    share = length / (count - (count - 1) * OVERLAP)
    starts = [round(number * share * (1 - OVERLAP)) for number in range(count)]
    return [(start, min(round(start + share) + 1, length)) for start in starts]


def merged(found: Sequence[tuple[Tile, Boxes]], size_hw: tuple[int, int]) -> Boxes:
    """Merge the boxes of a frame's tiles, best first.

    Args:
        found: each tile with its boxes, in pixels of the tile; the whole frame first.
        size_hw: of the frame.

    """
    if len(found) == 1:
        return found[0][1]
    boxes = np.concatenate([_placed(tile, one) for tile, one in found])
    scores = np.concatenate([one.scores for _, one in found])
    labels = np.array([label for _, one in found for label in one.labels], object)
    cut = np.concatenate([_cut(tile, one, size_hw) for tile, one in found])
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


def _placed(tile: Tile, boxes: Boxes) -> FloatArray:
    offset = np.array([tile.left, tile.top] * 2, np.float32)
    return np.asarray(boxes.xyxy_px + offset, np.float32)


def _cut(tile: Tile, boxes: Boxes, size_hw: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Tell which boxes touch a border of their tile that is not the frame's."""
    height, width = tile.bottom - tile.top, tile.right - tile.left
    inner = np.array(
        [tile.left > 0, tile.top > 0, tile.right < size_hw[1], tile.bottom < size_hw[0]]
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


def suppressed(
    xywh_px: FloatArray, scores: FloatArray, classes: Indices, limits: tuple[float, float]
) -> Indices:
    """Positions of the boxes that stay, best first.

    Args:
        xywh_px: left, top, width, height, float32 (N, 4).
        scores: (N,).
        classes: numbers of classes, (N,).
        limits: least score, and the IoU above which a box of one class gives way to a better one.

    """
    import cv2

    if not len(scores):
        return np.zeros(0, np.int64)
    given: tuple[Any, Any, Any] = (xywh_px, scores, classes)  # OpenCV's stubs know lists only
    kept = np.asarray(cv2.dnn.NMSBoxesBatched(*given, *limits), np.int64)
    some: tuple[Any, Any] = (xywh_px[kept], scores[kept])
    same = cv2.dnn.NMSBoxes(*some, limits[0], SAME_BOX_IOU)
    chosen = kept[np.asarray(same, np.int64)]
    best_first: Indices = chosen[np.argsort(-scores[chosen], kind="stable")]
    return best_first
