"""Low-resolution logits to COCO masks of the original image, without making the masks.

The published model upsamples its mask grid bilinearly (align_corners=False) to the original size
and thresholds at 0. A pixel can be positive only next to a positive cell, so everything happens
inside the rows and columns that hold positive cells. There, bilinear interpolation is separable:
the columns are interpolated first, as PyTorch does, and along each column the value is piecewise
linear between grid rows, so that the pixel where it changes sign follows from one division.
A column of 500 pixels costs as much as one of 5 and no full-resolution mask ever exists; the runs
are those of the upsampled and thresholded image (tests compare them with PyTorch's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sam2_core.rle import cancel_pairs, encode_toggles
from sam2_core.types import FloatArray, IntArray, LowResMasks, Masks

EMPTY = "empty mask: no pixel above the threshold"
NOT_FINITE = "model output is not finite"


@dataclass(frozen=True, eq=False)
class _Axis:
    """How `size` pixels sample `grid` cells along one axis, in PyTorch's float32 arithmetic."""

    low: npt.NDArray[np.int64]  # (size,) the cell before each pixel centre
    high: npt.NDArray[np.int64]  # (size,) the cell after it
    weight: FloatArray  # (size,) of `high`
    first: npt.NDArray[np.int64]  # (grid + 1,) the first pixel whose `low` is at least the cell


@lru_cache(maxsize=64)
def _axis(grid: int, size: int) -> _Axis:
    scale = np.float32(grid) / np.float32(size)
    half = np.float32(0.5)
    source = np.maximum((np.arange(size, dtype=np.float32) + half) * scale - half, np.float32(0))
    low = np.minimum(source.astype(np.int64), grid - 1)
    high = np.minimum(low + 1, grid - 1)
    weight = source - low.astype(np.float32)
    return _Axis(low, high, weight, np.searchsorted(low, np.arange(grid + 1)))


def _extent(positive: npt.NDArray[np.bool_]) -> tuple[int, int, int, int] | None:
    """First and last + 1 row, first and last + 1 column of the True cells."""
    rows = np.flatnonzero(positive.any(1))
    if not len(rows):
        return None
    columns = np.flatnonzero(positive[rows[0] : rows[-1] + 1].any(0))
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


@dataclass(frozen=True, eq=False)
class _Crossings:
    """Where columns change sign between two grid rows: all flat, in column-major order."""

    column: npt.NDArray[np.int64]  # pixel column
    row: npt.NDArray[np.int64]  # grid row before the crossing; -1 above the grid
    before: FloatArray  # value at that row
    after: FloatArray  # value at the next row


def _crossings(
    logits: FloatArray, origin_yx: tuple[int, int], grid: int, columns: _Axis
) -> _Crossings | None:
    extent = _extent(logits > 0)
    if extent is None:
        return None
    top, bottom, left, right = extent
    y0, x0 = origin_yx
    # One cell more on each side: there the mask ends. What lies outside the window is background.
    low_y, high_y = max(top - 1, 0), min(bottom + 1, logits.shape[0])
    low_x, high_x = max(left - 1, 0), min(right + 1, logits.shape[1])
    cells = np.ascontiguousarray(logits[low_y:high_y, low_x:high_x].T, dtype=np.float32)
    first = columns.first[x0 + low_x]
    # The last cell reaches the pixels before the next cell's, at the grid's end all that are left.
    stop = columns.first[min(x0 + high_x, grid)]
    reached = slice(int(first), int(stop))
    low = columns.low[reached] - (x0 + low_x)
    high = np.minimum(columns.high[reached] - (x0 + low_x), len(cells) - 1)
    weight = columns.weight[reached, None]
    values = cells[low] * (np.float32(1) - weight) + cells[high] * weight
    # A row of background above and below closes every run.
    framed = np.full((len(values), values.shape[1] + 2), -1, np.float32)
    framed[:, 1:-1] = values
    positive = framed > 0
    column, row = np.nonzero(positive[:, 1:] != positive[:, :-1])
    return _Crossings(
        column + int(first), row + (y0 + low_y - 1), framed[column, row], framed[column, row + 1]
    )


def _toggle_rows(crossings: _Crossings, grid: int, rows: _Axis, height: int) -> IntArray:
    """Find the first pixel row behind each crossing, in the arithmetic of the upsampling."""
    row, before, after = crossings.row, crossings.before, crossings.after
    begins = after > 0
    inside = (row >= 0) & (row < grid - 1)
    first = rows.first[np.clip(row, 0, grid)]
    last = rows.first[np.clip(row + 1, 0, grid)]
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = np.where(inside, before.astype(np.float64) / (before - after), 0.0)
    guess = np.ceil((row + fraction + 0.5) * (height / grid) - 0.5).astype(np.int64)
    guess = np.clip(guess, first, last)

    def behind(pixel: IntArray) -> npt.NDArray[np.bool_]:
        weight = rows.weight[np.clip(pixel, 0, height - 1)]
        value: FloatArray = before * (np.float32(1) - weight) + after * weight
        result: npt.NDArray[np.bool_] = (value > 0) == begins
        return result

    # The guess is off by at most one pixel, where the value is zero to rounding.
    guess += (guess < last) & ~behind(guess)
    guess -= (guess > first) & behind(guess - 1)
    # Above the first grid row and below the last the value is that row's.
    guess = np.where(row < 0, 0, guess)
    result: IntArray = np.where(row >= grid - 1, height, guess)
    return result


def encode_masks(
    logits: Sequence[FloatArray] | FloatArray,
    origin_yx: npt.NDArray[np.integer],
    grid_hw: tuple[int, int],
    size_hw: tuple[int, int],
) -> tuple[list[bytes], IntArray, list[str]]:
    """Encode the masks of one image as full upsampling and thresholding at 0 would.

    Args:
        logits: N float32 arrays (h_i, w_i), windows of the mask grid.
        origin_yx: int (N, 2), each window's top left cell in the grid.
        grid_hw: the whole grid; outside a window the mask is background.
        size_hw: (H, W) of the original image.

    Returns:
        N COCO compressed counts of the whole image, int64 (N,) areas in pixels, and N reasons
        ("" for a good mask).

    """
    height, width = size_hw
    rows, columns = _axis(grid_hw[0], height), _axis(grid_hw[1], width)
    found: list[_Crossings] = []
    per_mask = np.zeros(len(logits), np.int64)
    reasons = [""] * len(logits)
    for index, window in enumerate(logits):
        if not np.isfinite(window).all():
            reasons[index] = NOT_FINITE
            continue
        origin = int(origin_yx[index][0]), int(origin_yx[index][1])
        crossings = _crossings(window, origin, grid_hw[1], columns)
        if crossings is not None:
            found.append(crossings)
            per_mask[index] = len(crossings.row)
    toggles, per_mask = _toggles(found, per_mask, (rows, grid_hw[0]), size_hw)
    strings, area = encode_toggles(toggles, per_mask, size_hw)
    reasons = [
        reason or ("" if pixels else EMPTY) for reason, pixels in zip(reasons, area, strict=True)
    ]
    return strings, area, reasons


def _toggles(
    found: list[_Crossings],
    per_mask: IntArray,
    rows: tuple[_Axis, int],
    size_hw: tuple[int, int],
) -> tuple[IntArray, IntArray]:
    """Positions in the column-major image where each mask's value changes, and how many a mask."""
    if not found:
        return np.zeros(0, np.int64), per_mask
    height, width = size_hw
    together = _Crossings(
        np.concatenate([part.column for part in found]),
        np.concatenate([part.row for part in found]),
        np.concatenate([part.before for part in found]),
        np.concatenate([part.after for part in found]),
    )
    row = _toggle_rows(together, rows[1], rows[0], height)
    # Masks one after another on one line, one pixel more than an image apart: the end of a mask
    # at the image's last pixel stays apart from the start of the next at its first.
    stride = height * width + 1
    mask = np.repeat(np.arange(len(per_mask)), per_mask)
    line = cancel_pairs(mask * stride + together.column * height + row)
    mask, position = np.divmod(line, stride)
    kept = position < height * width
    return position[kept], np.bincount(mask[kept], minlength=len(per_mask))


def finish(
    low_res: LowResMasks,
    size_hw: tuple[int, int],
    rows: npt.NDArray[np.int64] | None = None,
    reasons: Sequence[str] | None = None,
) -> Masks:
    """Turn decoded prompts of one image into its `Masks`, one row for each of the caller's prompts.

    Args:
        low_res: decoder output for V prompts.
        size_hw: (H, W) of the original image.
        rows: int64 (V,), the caller's row of each prompt; all rows in order when None.
        reasons: N reasons, "" where a prompt was decoded; V empty ones when None.

    """
    count = len(low_res.predicted_iou)
    rows = np.arange(count) if rows is None else rows
    all_reasons = [""] * count if reasons is None else list(reasons)
    strings, area, why = encode_masks(low_res.logits, low_res.origin_yx, low_res.grid_hw, size_hw)
    total = len(all_reasons)
    nothing, _ = encode_toggles(np.zeros(0, np.int64), np.zeros(1, np.int64), size_hw)
    rle = nothing * total
    scores = np.zeros((3, total), np.float32)
    scores[:, rows] = low_res.predicted_iou, low_res.stability, low_res.object_score
    areas = np.zeros(total, np.int64)
    areas[rows] = area
    for row, text, reason in zip(rows, strings, why, strict=True):
        rle[row] = text
        all_reasons[row] = reason
        if reason == NOT_FINITE:
            scores[:, row] = 0
    scores[~np.isfinite(scores)] = 0
    return Masks(tuple(rle), size_hw, scores[0], scores[1], scores[2], areas, tuple(all_reasons))
