"""From COCO run lengths of whole images to small masks over boxes, many at once.

A mask is a set of runs over the image flattened column by column. Decoding one mask of a large
image costs as much as the image; here only what is in a crop becomes pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from isal import isal_zlib
from rlemasklib import RLEMask

from sam2_core.arrays import Arrays
from sam2_core.mask_geometry import mask_of
from sam2_core.types import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]
MASKS_AT_ONCE = 500  # what is computed of so many stays in a core's cache


@dataclass(frozen=True, eq=False)
class Segments(Arrays):
    """Foreground of N masks of one image as vertical segments, none longer than a column.

    Attributes:
        mask: int64 (S,), which mask each belongs to, ascending.
        column: int64 (S,), x of the segment in the image, ascending within a mask.
        top, bottom: int64 (S,), first row and the row after the last, top < bottom.
        count: N.
        size_hw: (height, width) of the image.

    """

    forms: ClassVar = {
        "mask": "int64 (S)",
        "column": "int64 (S)",
        "top": "int64 (S)",
        "bottom": "int64 (S)",
    }
    mask: IntArray
    column: IntArray
    top: IntArray
    bottom: IntArray
    count: int
    size_hw: tuple[int, int]


def masks_of(rle: Sequence[bytes], size_hw: tuple[int, int]) -> list[RLEMask]:
    """Read N compressed run-length strings (COCO's `counts`) of one image.

    Raises:
        ValueError: a string is damaged: its runs are not those of the image.

    """
    return [mask_of(counts, size_hw) for counts in rle]


def run_edges(masks: Sequence[RLEMask]) -> IntArray:
    """Where the foreground runs of N masks of one image begin and end, one after another.

    Returns:
        int64 (2R,), ascending: places in N images flattened column by column and laid end to end.
        A pixel is foreground if an odd number of edges lies at or before it.

    """
    runs = [mask.counts for mask in masks]
    edges = np.cumsum(np.concatenate([*runs, np.zeros(0, np.uint32)]), dtype=np.int64)
    lengths = np.array([len(run) for run in runs], np.int64)
    # The end of a background run that ends its image is none.
    return np.delete(edges, (np.cumsum(lengths) - 1)[lengths % 2 == 1])


def segments_of(masks: Sequence[RLEMask], size_hw: tuple[int, int]) -> Segments:
    """Cut N masks of one image into segments."""
    start, stop = run_edges(masks).reshape(-1, 2).T
    owner = start // max(size_hw[0] * size_hw[1], 1)
    before = owner * (size_hw[0] * size_hw[1])
    return _split_columns(owner, start - before, stop - before, len(masks), size_hw)


def _split_columns(
    owner: IntArray, start: IntArray, stop: IntArray, count: int, size_hw: tuple[int, int]
) -> Segments:
    """Cut runs that go on in the next column."""
    height = max(size_hw[0], 1)
    column, last = start // height, (stop - 1) // height
    if (last > column).any():
        columns = last - column + 1
        piece = np.arange(columns.sum()) - np.repeat(np.cumsum(columns) - columns, columns)
        owner, start, stop, column = (
            np.repeat(part, columns) for part in (owner, start, stop, column)
        )
        column += piece
        start = np.maximum(start, column * height)
        stop = np.minimum(stop, (column + 1) * height)
    offset = column * height
    return Segments(owner, column, start - offset, stop - offset, count, size_hw)


def crop_windows(
    boxes_xyxy_px: FloatArray, bounds_xyxy_px: IntArray, size_hw: tuple[int, int]
) -> IntArray:
    """Whole-pixel windows around boxes and their masks: int64 (N, 4), zeros where there is neither.

    The window is the box, grown where the mask spills out of it and cut at the image's border.
    """
    height, width = size_hw
    with np.errstate(invalid="ignore"):
        boxes = np.array(boxes_xyxy_px, np.float64).reshape(-1, 4)
        boxes[~np.isfinite(boxes).all(axis=1)] = 0
    boxes = boxes.clip(-1, [width + 1, height + 1] * 2)  # 1e30 is no number of pixels
    low = np.floor(boxes[:, :2]).astype(np.int64)
    high = np.ceil(boxes[:, 2:]).astype(np.int64)
    empty = bounds_xyxy_px[:, 2] <= bounds_xyxy_px[:, 0]
    far = np.int64(2**40)
    masks = bounds_xyxy_px + np.where(empty, far, 0)[:, None] * np.array([1, 1, -1, -1])
    box = np.concatenate([low, high], axis=1).clip(0, [width, height, width, height])
    inverted = (box[:, 2] <= box[:, 0]) | (box[:, 3] <= box[:, 1])
    box = box + np.where(inverted, far, 0)[:, None] * np.array([1, 1, -1, -1])
    joined = np.concatenate(
        [np.minimum(box[:, :2], masks[:, :2]), np.maximum(box[:, 2:], masks[:, 2:])], axis=1
    )
    joined[(joined[:, 2] <= joined[:, 0]) | (joined[:, 3] <= joined[:, 1])] = 0
    return joined


def bounds_of(masks: Sequence[RLEMask]) -> IntArray:
    """Smallest boxes around N masks: int64 (N, 4) left, top, right, bottom; zeros if empty."""
    xywh = np.array([mask.bbox() for mask in masks], np.int64).reshape(-1, 4)
    return np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)


def cut_out(mask: RLEMask, window_xyxy_px: Sequence[int]) -> BoolArray:
    """Pixels of a mask in a window of its image: bool (height, width), C order."""
    import cv2

    left, top, right, bottom = window_xyxy_px
    pixels = mask[top:bottom, left:right].to_array()  # column by column, as the runs are
    return (cv2.transpose(pixels.T) if pixels.size else pixels).view(np.bool_)


def npy_zlib(mask: BoolArray) -> bytes:
    """Serialise a mask as FiftyOne does: a zlib-compressed .npy file."""
    return deflated(npy_bytes(mask))


def npy_bytes(mask: BoolArray) -> bytes:
    """Return the content of a .npy file: the same for the same mask, however it was stored."""
    return b"".join((_npy_header(*mask.shape), mask.data))


def deflated(content: bytes) -> bytes:
    """Compress with ISA-L's fastest level: a fifth of zlib's time, and any zlib reads it."""
    return isal_zlib.compress(content, 0)


@lru_cache(maxsize=65536)
def _npy_header(height: int, width: int) -> bytes:
    text = b"{'descr': '|b1', 'fortran_order': False, 'shape': (%d, %d), }" % (height, width)
    padded = 64 * math.ceil((len(text) + 11) / 64) - 10
    return b"\x93NUMPY\x01\x00" + padded.to_bytes(2, "little") + text.ljust(padded - 1) + b"\n"


@dataclass(frozen=True, eq=False)
class Crops(Arrays):
    """Masks of N instances over their windows.

    Attributes:
        windows_xyxy_px: int64 (N, 4), whole pixels; zeros where there is neither box nor mask.
        masks: N bool arrays (height, width) of the windows.

    """

    forms: ClassVar = {"windows_xyxy_px": "int64 (N, 4)", "masks": "tuple (N)"}
    windows_xyxy_px: IntArray
    masks: tuple[BoolArray, ...]


def crops_of(boxes_xyxy_px: FloatArray, rle: Sequence[bytes], size_hw: tuple[int, int]) -> Crops:
    """Cut N masks of an image out around their boxes; raises as `masks_of`."""
    masks = masks_of(rle, size_hw)
    windows = crop_windows(boxes_xyxy_px, bounds_of(masks), size_hw)
    return Crops(windows, tuple(map(cut_out, masks, windows.tolist())))
