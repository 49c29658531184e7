"""From COCO run lengths of whole images to small masks over boxes, many at once.

A mask is a set of runs over the image flattened column by column. Decoding one mask of a large
image costs as much as the image; here only the runs are expanded, and painted into crops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from sam2_core.types import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Segments:
    """Foreground of N masks of one image as vertical segments, none longer than a column.

    Attributes:
        mask: int64 (S,), which mask each belongs to, ascending.
        column: int64 (S,), x of the segment in the image, ascending within a mask.
        top, bottom: int64 (S,), first row and the row after the last, top < bottom.
        count: N.
        size_hw: (height, width) of the image.

    """

    mask: IntArray
    column: IntArray
    top: IntArray
    bottom: IntArray
    count: int
    size_hw: tuple[int, int]

    def areas_px(self) -> IntArray:
        """int64 (N,)."""
        areas = np.bincount(self.mask, self.bottom - self.top, minlength=self.count)
        return areas.astype(np.int64)

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

    def split(self, starts: IntArray) -> list[Segments]:
        """Split into the masks from starts[i] up to starts[i + 1]."""
        edges = np.searchsorted(self.mask, starts).tolist()
        bounds = zip(starts.tolist(), starts[1:].tolist(), edges, edges[1:], strict=False)
        return [
            Segments(self.mask[a:b] - first, self.column[a:b], self.top[a:b], self.bottom[a:b],
                     after - first, self.size_hw)
            for first, after, a, b in bounds
        ]  # fmt: skip


def segments_of(rle: Sequence[bytes], size_hw: tuple[int, int]) -> Segments:
    """Decode N compressed run-length strings (COCO's `counts`) of one image.

    Raises:
        ValueError: a string is damaged: its runs do not end within the image.

    """
    height, width = size_hw
    counts, runs = _decode_counts(rle)
    ends = np.cumsum(counts)
    first = np.cumsum(runs) - runs
    before = np.where(first > 0, ends[first - 1], 0) if len(ends) else first
    before = np.where(runs > 0, before, 0)
    ends = ends - np.repeat(before, runs)
    if len(ends) and (ends.max(initial=0) > height * width or counts.min() < 0):
        raise ValueError("damaged run lengths: they do not fit the image")
    position = np.arange(len(counts)) - np.repeat(first, runs)
    ones = np.flatnonzero((position % 2 == 1) & (counts > 0))
    owner = np.repeat(np.arange(len(rle)), runs)[ones]
    start, stop = (ends - counts)[ones], ends[ones]
    return _split_columns(owner, start, stop, len(rle), size_hw)


def _split_columns(
    owner: IntArray, start: IntArray, stop: IntArray, count: int, size_hw: tuple[int, int]
) -> Segments:
    """Cut runs that go on in the next column."""
    height = max(size_hw[0], 1)
    columns = (stop - 1) // height - start // height + 1
    if columns.max(initial=1) > 1:
        piece = np.arange(columns.sum()) - np.repeat(np.cumsum(columns) - columns, columns)
        owner, start, stop = (np.repeat(part, columns) for part in (owner, start, stop))
        column = start // height + piece
        start = np.maximum(start, column * height)
        stop = np.minimum(stop, (column + 1) * height)
    else:
        column = start // height
    offset = column * height
    return Segments(owner, column, start - offset, stop - offset, count, size_hw)


def _decode_counts(rle: Sequence[bytes]) -> tuple[IntArray, IntArray]:
    """All masks' run lengths one after another, and how many runs each mask has.

    COCO's code: five bits a character, least significant first, 0x20 says that more follow, 0x10 of
    the last is the sign; from the fourth run on, the difference to the run before the last.
    """
    data = np.frombuffer(b"".join(rle), np.uint8)
    if not len(data):
        return np.zeros(0, np.int64), np.zeros(len(rle), np.int64)
    codes = data - 48
    stops = np.flatnonzero(codes < 0x20)
    starts = np.empty_like(stops)
    starts[0], starts[1:] = 0, stops[:-1] + 1
    values = (codes[starts] & 0x1F).astype(np.int64)
    lengths = stops - starts + 1
    for place in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > place)
        values[longer] |= (codes[starts[longer] + place] & 0x1F).astype(np.int64) << (5 * place)
    negative = np.flatnonzero(codes[stops] & 0x10)
    values[negative] -= np.int64(1) << (5 * lengths[negative])
    ends = np.cumsum([len(counts) for counts in rle])
    runs = np.diff(np.searchsorted(stops, ends, side="left"), prepend=0)
    first = np.cumsum(runs) - runs
    _undo_differences(values, first, runs)
    return values, runs


def _undo_differences(values: IntArray, first: IntArray, runs: IntArray) -> None:
    """Add to each run from the fourth on the one before the last, mask by mask, in place."""
    at = np.arange(len(values)) - np.repeat(first, runs)
    for parity in (1, 0):
        chosen = np.flatnonzero((at & 1 == parity) & (at > 0))
        if not len(chosen):
            continue
        steps = values[chosen]
        total = np.cumsum(steps)
        head = np.flatnonzero(at[chosen] == (1 if parity else 2))
        base = total[head] - steps[head]
        values[chosen] = total - np.repeat(base, np.diff(np.append(head, len(chosen))))


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
    return _npy_header(*mask.shape) + mask.tobytes()


def deflated(content: bytes) -> bytes:
    """Compress with ISA-L's fastest level: a fifth of zlib's time, and any zlib reads it."""
    data: bytes = isal_zlib.compress(content, 0)
    return data


@lru_cache(maxsize=65536)
def _npy_header(height: int, width: int) -> bytes:
    text = b"{'descr': '|b1', 'fortran_order': False, 'shape': (%d, %d), }" % (height, width)
    padded = 64 * math.ceil((len(text) + 11) / 64) - 10
    return b"\x93NUMPY\x01\x00" + padded.to_bytes(2, "little") + text.ljust(padded - 1) + b"\n"
