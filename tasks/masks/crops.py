"""From COCO run lengths of whole images to small masks over boxes, many at once.

A mask is a set of runs over the image flattened column by column. Decoding one mask of a large
image costs as much as the image; here only the runs are expanded, and painted into crops.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from sam2_core.arrays import Arrays
from sam2_core.types import Boxes, FloatArray, IntArray, Masks

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

    def bounds_xyxy_px(self) -> IntArray:
        """int64 (N, 4): left, top, right, bottom of each mask; zeros where it is empty."""
        bounds = np.zeros((self.count, 4), np.int64)
        if not len(self.mask):
            return bounds
        first = np.flatnonzero(np.diff(self.mask, prepend=-1))
        present = self.mask[first]
        last = np.append(first[1:], len(self.mask)) - 1
        bounds[present, 0] = self.column[first]
        bounds[present, 1] = np.minimum.reduceat(self.top, first)
        bounds[present, 2] = self.column[last] + 1
        bounds[present, 3] = np.maximum.reduceat(self.bottom, first)
        return bounds


def segments_of(rle: Sequence[bytes], size_hw: tuple[int, int]) -> Segments:
    """Decode N compressed run-length strings (COCO's `counts`) of one image.

    Raises:
        ValueError: a string is damaged: its runs do not end within the image.

    """
    pairs, ends, rows = _run_ends(rle, size_hw)
    some = np.flatnonzero(pairs[:, 1])
    owner = np.repeat(np.arange(len(rle)), rows)[some]
    return _split_columns(owner, ends[some, 0], ends[some, 1], len(rle), size_hw)


def run_edges(rle: Sequence[bytes], size_hw: tuple[int, int]) -> IntArray:
    """Where the foreground runs of N masks of one image begin and end, one after another.

    Returns:
        int64 (2R,), ascending: places in N images flattened column by column and laid end to end.
        A pixel is foreground if an odd number of edges lies at or before it.

    Raises:
        ValueError: a string is damaged: its runs do not end within the image.

    """
    _, ends, rows = _run_ends(rle, size_hw)
    ends += np.repeat(np.arange(len(rle)) * (size_hw[0] * size_hw[1]), rows)[:, None]
    return ends.reshape(-1)


def _run_ends(
    rle: Sequence[bytes], size_hw: tuple[int, int]
) -> tuple[IntArray, IntArray, IntArray]:
    """Lengths and ends of all masks' runs, each int64 (R, 2), and how many pairs each mask has."""
    pairs, rows = run_pairs(rle)
    first = np.cumsum(rows) - rows
    ends = np.cumsum(pairs).reshape(-1, 2)
    before = np.where((rows > 0) & (first > 0), np.append(ends[:, 1], 0)[first - 1], 0)
    ends -= np.repeat(before, rows)[:, None]
    if ends.max(initial=0) > size_hw[0] * size_hw[1] or pairs.min(initial=0) < 0:
        raise ValueError("damaged run lengths: they do not fit the image")
    return pairs, ends, rows


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


def run_pairs(rle: Sequence[bytes]) -> tuple[IntArray, IntArray]:
    """All masks' run lengths as pairs background, foreground, and how many pairs each mask has.

    COCO's code: five bits a character, least significant first, 0x20 says that more follow, 0x10 of
    the last is the sign; from the fourth run on, the difference to the run before the last.

    Returns:
        int64 (R, 2), one mask after another, 0 where a mask ends with a background run, and int64
        (N,).

    """
    codes = np.frombuffer(b"".join(rle), np.uint8) - 48
    stops = np.flatnonzero(codes < 0x20)
    lengths = np.diff(stops, prepend=-1)
    starts = stops - lengths + 1
    values = (codes[starts] & 0x1F).astype(np.int64)
    for digit in range(1, int(lengths.max(initial=1))):
        longer = np.flatnonzero(lengths > digit)
        values[longer] |= (codes[starts[longer] + digit] & 0x1F).astype(np.int64) << (5 * digit)
    values -= (codes[stops] & 0x10).astype(np.int64) << (5 * lengths - 4)
    ends = np.cumsum([len(counts) for counts in rle])
    runs = np.diff(np.searchsorted(stops, ends, side="left"), prepend=0)
    rows = (runs + 1) // 2
    shift = 2 * (np.cumsum(rows) - rows) - (np.cumsum(runs) - runs)
    pairs = np.zeros((int(rows.sum()), 2), np.int64)
    pairs.reshape(-1)[np.arange(len(values)) + np.repeat(shift, runs)] = values
    return _undo_differences(pairs, rows, runs), rows


def _undo_differences(differences: IntArray, rows: IntArray, runs: IntArray) -> IntArray:
    """Add to each run from the fourth on the one before the last, mask by mask."""
    some = rows > 0
    rows, odd = rows[some], runs[some] % 2 == 1
    first = np.cumsum(rows) - rows
    pairs = np.cumsum(differences, axis=0)
    # The sums start anew with each mask, those of the background with its third run.
    base = np.stack([pairs[first, 0], pairs[first, 1] - differences[first, 1]], axis=1)
    pairs -= np.repeat(base, rows, axis=0)
    pairs[first, 0] = differences[first, 0]
    pairs[(first + rows - 1)[odd], 1] = 0
    return np.asarray(pairs)


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


def paint(segments: Segments, windows_xyxy_px: IntArray) -> list[BoolArray]:
    """Masks of N windows that hold them: bool (height, width) of the window, C order."""
    import cv2

    left, top, right, bottom = windows_xyxy_px.T
    heights, widths = bottom - top, right - left
    sizes = heights * widths
    offsets = np.cumsum(sizes) - sizes
    of = segments.mask
    column = (segments.column - left[of]) * heights[of] + offsets[of] - top[of]
    edges = np.empty(2 * len(of) + 2, np.int64)
    edges[0], edges[-1] = 0, sizes.sum()
    edges[1:-1:2], edges[2:-1:2] = column + segments.top, column + segments.bottom
    values = np.zeros(2 * len(of) + 1, np.uint8)
    values[1::2] = 1
    flat = np.repeat(values, np.diff(edges))
    return [
        cv2.transpose(flat[at : at + h * w].reshape(w, h)).view(np.bool_)
        if h
        else np.zeros((0, 0), np.bool_)
        for at, h, w in zip(offsets.tolist(), heights.tolist(), widths.tolist(), strict=True)
    ]


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


def crops_of(boxes_xyxy_px: FloatArray, segments: Segments) -> Crops:
    """Cut N masks of an image out around their boxes."""
    windows = crop_windows(boxes_xyxy_px, segments.bounds_xyxy_px(), segments.size_hw)
    return Crops(windows, tuple(paint(segments, windows)))


def crops_of_frames(frames: Sequence[tuple[Boxes, Masks]]) -> Iterator[Crops]:
    """Cut out the masks of frames, one frame after another.

    Those of many frames are decoded at once: a call of numpy costs as much for a few masks.
    """
    blocks = np.cumsum([len(boxes) for boxes, _ in frames]) // MASKS_AT_ONCE
    sizes = [(*masks.size_hw, block) for (_, masks), block in zip(frames, blocks, strict=True)]
    for (height, width, _), group in itertools.groupby(
        zip(sizes, frames, strict=True), key=itemgetter(0)
    ):
        some = [frame for _, frame in group]
        boxes_xyxy_px = np.concatenate([boxes.xyxy_px for boxes, _ in some])
        rle = [counts for _, masks in some for counts in masks.rle]
        crops = crops_of(boxes_xyxy_px, segments_of(rle, (height, width)))
        ends = np.cumsum([len(boxes) for boxes, _ in some]).tolist()
        for start, stop in itertools.pairwise([0, *ends]):
            rows = slice(start, stop)
            yield Crops(crops.windows_xyxy_px[rows], crops.masks[rows])
