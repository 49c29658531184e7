"""Masks in the coordinates of their boxes: what is left of a change when the box's is taken away.

A mask is sampled at 32 x 32 points of its box. Two of one object, frames apart, then lie on each
other although the box has moved and grown, and comparing them costs a few instructions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sam2_core.types import Masks
from tasks.masks.crops import BoolArray, crop_windows, paint, segments_of
from tasks.risk.geometry import Numbers

GRID = 32
WORDS = GRID * GRID // 64
_CANVAS = 48
ShapeArray = npt.NDArray[np.uint64]
_CENTRES = (np.arange(GRID) + 0.5) / GRID


def shapes_of(masks: Masks, boxes_xyxy_px: Numbers) -> ShapeArray:
    """Sample N masks over their boxes.

    Args:
        masks: N masks of one image.
        boxes_xyxy_px: float (N, 4), each with an area.

    Returns:
        uint64 (N, 16): a bit for each of 32 x 32 points, row by row.

    """
    segments = segments_of(masks.rle, masks.size_hw)
    boxes = np.asarray(boxes_xyxy_px, np.float64)
    windows = crop_windows(boxes.astype(np.float32), segments.bounds_xyxy_px(), masks.size_hw)
    grids = np.zeros((len(masks), GRID, GRID), np.bool_)
    for grid, painted, window, box in zip(
        grids, paint(segments, windows), windows, boxes, strict=True
    ):
        grid[:] = _sampled(painted, window, box)
    return _packed(grids)


def _sampled(painted: BoolArray, window: npt.NDArray[np.int64], box: Numbers) -> BoolArray:
    """Take a painted mask at the points of a box; outside the window it is background."""
    height, width = painted.shape
    column = np.floor(box[0] + _CENTRES * (box[2] - box[0])).astype(np.int64) - window[0]
    row = np.floor(box[1] + _CENTRES * (box[3] - box[1])).astype(np.int64) - window[1]
    if not height or not width:
        return np.zeros((GRID, GRID), np.bool_)
    found = painted[row.clip(0, height - 1)][:, column.clip(0, width - 1)]
    inside = ((row >= 0) & (row < height))[:, None] & ((column >= 0) & (column < width))[None]
    return np.asarray(found & inside)


def _packed(grids: BoolArray) -> ShapeArray:
    bits = np.packbits(grids.reshape(len(grids), -1), axis=1)
    return np.ascontiguousarray(bits).view(np.uint64).reshape(len(grids), WORDS)


def _unpacked(shape: ShapeArray) -> BoolArray:
    return np.unpackbits(shape.view(np.uint8)).reshape(GRID, GRID).view(np.bool_)


def agreements(first: ShapeArray, second: ShapeArray) -> Numbers:
    """IoU of masks row by row after their boxes were laid on each other: float64 (N,).

    Two empty masks agree.
    """
    shared = np.bitwise_count(first & second).sum(axis=-1, dtype=np.int64)
    union = np.bitwise_count(first | second).sum(axis=-1, dtype=np.int64)
    return np.where(union > 0, shared / np.maximum(union, 1), 1.0)


def placed_iou(first: ShapeArray, first_box: Numbers, second: ShapeArray, box: Numbers) -> float:
    """IoU of two masks where each is put into a box: of one that has moved, and one that is there.

    Args:
        first: uint64 (16,).
        first_box: float (4,), where in the image it is put.
        second: uint64 (16,).
        box: float (4,), where that one is.

    """
    low, high = np.minimum(first_box[:2], box[:2]), np.maximum(first_box[2:], box[2:])
    points = low + (np.arange(_CANVAS)[:, None] + 0.5) / _CANVAS * (high - low)
    drawn = []
    for shape, at in ((first, first_box), (second, box)):
        cell = np.floor((points - at[:2]) / (at[2:] - at[:2]).clip(1e-6) * GRID).astype(np.int64)
        inside = (cell >= 0) & (cell < GRID)
        column, row = cell.clip(0, GRID - 1).T
        values = _unpacked(shape)[row][:, column]
        drawn.append(values & inside[:, 1][:, None] & inside[:, 0][None])
    union = int((drawn[0] | drawn[1]).sum())
    return float((drawn[0] & drawn[1]).sum() / union) if union else 0.0
