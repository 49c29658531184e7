"""Masks in the coordinates of their boxes: what is left of a change when the box's is taken away.

A mask is sampled at 32 x 32 points of its box. Two of one object, frames apart, then lie on each
other although the box has moved and grown, and comparing them costs a few instructions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sam2_core.types import Masks
from tasks.masks.crops import BoolArray, run_edges
from tasks.risk.geometry import Numbers

GRID = 32
WORDS = GRID * GRID // 64
_CANVAS = 48
_BITS = 2.0 ** np.arange(_CANVAS)
ShapeArray = npt.NDArray[np.uint64]
_CENTRES = (np.arange(GRID) + 0.5) / GRID
_POINTS = (np.arange(_CANVAS) + 0.5) / _CANVAS
# What is looked at together stays in a core's cache: bytes of runs and points, pairs of masks.
_SAMPLED, _PAIRS = 1 << 17, 128


def shapes_of(masks: Masks, boxes_xyxy_px: Numbers) -> ShapeArray:
    """Sample N masks over their boxes; no mask is painted, however many runs it has.

    Args:
        masks: N masks of one image.
        boxes_xyxy_px: float (N, 4), each with an area.

    Returns:
        uint64 (N, 16): a bit for each of 32 x 32 points, row by row.

    Raises:
        ValueError: a mask is damaged.

    """
    boxes = np.asarray(boxes_xyxy_px, np.float64)
    found = np.zeros((len(masks), WORDS), np.uint64)
    group = np.cumsum([len(rle) + GRID * GRID for rle in masks.rle]) // _SAMPLED
    starts = np.flatnonzero(np.diff(group, prepend=-1)).tolist()
    for start, stop in itertools.pairwise([*starts, len(masks)]):
        part = slice(start, stop)
        grids = _sampled(masks.rle[part], boxes[part], masks.size_hw)
        bits = np.packbits(grids.reshape(len(grids), -1), axis=1)
        found[part] = np.ascontiguousarray(bits).view(np.uint64)
    return found


def _sampled(rle: Sequence[bytes], boxes: Numbers, size_hw: tuple[int, int]) -> BoolArray:
    """Take masks at the points of their boxes: (N, 32, 32); outside the image is background."""
    height, width = size_hw
    low, high = boxes[:, :2, None], boxes[:, 2:, None]
    column, row = np.floor(low + _CENTRES * (high - low)).transpose(1, 0, 2)
    inside = ((row >= 0) & (row < height))[:, None] & ((column >= 0) & (column < width))[:, :, None]
    places = column.clip(0, max(width - 1, 0)).astype(np.int64) * height
    places += np.arange(len(rle))[:, None] * (height * width)
    rows = row.clip(0, max(height - 1, 0)).astype(np.int64)
    every = places[:, :, None] + rows[:, None]
    before = np.searchsorted(run_edges(rle, size_hw), every.reshape(-1), side="right")
    odd = (before & 1).astype(np.bool_).reshape(every.shape)
    return np.asarray(odd & inside).transpose(0, 2, 1)


def agreements(first: ShapeArray, second: ShapeArray) -> Numbers:
    """IoU of masks row by row after their boxes were laid on each other: float64 (N,).

    Two empty masks agree.
    """
    shared = np.bitwise_count(first & second).sum(axis=-1, dtype=np.int64)
    union = np.bitwise_count(first | second).sum(axis=-1, dtype=np.int64)
    return np.where(union > 0, shared / np.maximum(union, 1), 1.0)


def extents_of(shapes: ShapeArray) -> Numbers:
    """Where in their boxes N masks lie: float64 (N, 4), left, top, right, bottom in [0, 1].

    They are a hundredth of a cell too large, so that no rounding leaves a point of a mask outside.
    """
    rows = shapes.view(np.uint8).reshape(len(shapes), GRID, GRID // 8)
    columns = np.unpackbits(np.bitwise_or.reduce(rows, axis=1), axis=1)
    lines = np.stack([columns, rows.any(axis=2)], axis=1)
    first, last = lines.argmax(axis=2), GRID - lines[:, :, ::-1].argmax(axis=2)
    cells = np.concatenate([first - 0.01, last + 0.01], axis=1)
    return np.asarray((cells / GRID).clip(0, 1))


def placed_px(extents: Numbers, boxes_px: Numbers) -> Numbers:
    """Put extents of masks into their boxes: (N, 4), never beyond them."""
    low, high = np.tile(boxes_px[:, :2], 2), np.tile(boxes_px[:, 2:], 2)
    return np.asarray((low + extents * (high - low)).clip(low, high))


def placed_ious(
    first: ShapeArray, first_boxes: Numbers, second: ShapeArray, boxes: Numbers
) -> Numbers:
    """IoU of pairs of masks where each is put into a box: of ones that have moved, and ones there.

    Both are drawn over the box around the two, at 48 x 48 points. Two empty masks have none.

    Args:
        first: uint64 (P, 16).
        first_boxes: float64 (P, 4), where in the image they are put.
        second: uint64 (P, 16).
        boxes: float64 (P, 4), where those are.

    Returns:
        float64 (P,).

    """
    found = np.zeros(len(first))
    for start in range(0, len(first), _PAIRS):
        part = slice(start, start + _PAIRS)
        one, other = first_boxes[part], boxes[part]
        low, high = np.minimum(one[:, :2], other[:, :2]), np.maximum(one[:, 2:], other[:, 2:])
        points = low[:, :, None] + _POINTS * (high - low)[:, :, None]
        drawn, there = _drawn(first[part], one, points), _drawn(second[part], other, points)
        shared = np.bitwise_count(drawn & there).sum(axis=1, dtype=np.int64)
        union = np.bitwise_count(drawn | there).sum(axis=1, dtype=np.int64)
        found[part] = shared / np.maximum(union, 1)
    return found


def _drawn(shapes: ShapeArray, boxes: Numbers, points: Numbers) -> ShapeArray:
    """Draw P masks at points x and y (P, 2, 48): a word for each row of points, (P, 48).

    A cell of a mask covers some successive points of a row: a number with their bits. The numbers
    of all cells that are set add up to the row's bits, in whole floats far below 2**53.
    """
    count = len(shapes)
    sides = (boxes[:, 2:] - boxes[:, :2]).clip(1e-6)[:, :, None]
    cell = np.floor((points - boxes[:, :2, None]) / sides * GRID)
    outside = (cell < 0) | (cell >= GRID)
    column, row = np.where(outside, GRID, cell).astype(np.int64).transpose(1, 0, 2)
    own = column + np.arange(count)[:, None] * (GRID + 1)
    bits = np.bincount(own.reshape(-1), np.tile(_BITS, count), count * (GRID + 1))
    grids = np.unpackbits(shapes.view(np.uint8), axis=1).reshape(count, GRID, GRID)
    of_cells = bits.reshape(count, GRID + 1, 1)[:, :GRID]
    words = np.zeros((count, GRID + 1), np.uint64)
    words[:, :GRID] = (grids.astype(np.float64) @ of_cells)[:, :, 0]
    return np.take_along_axis(words, row, axis=1)
