"""Low-resolution logits to COCO masks of the original image, without making the masks.

The published model upsamples its mask grid bilinearly (align_corners=False) to the original size
and thresholds at 0. Where the four cells around a pixel agree in sign the pixel has that sign, so
only pixels among cells that disagree are computed: a band along the mask's border. Bilinear
interpolation is separable, so inside such a 2x2 block of cells each pixel column is interpolated at
the upper and the lower cell row first, as PyTorch does; between the two the value is linear, and
the pixel where it changes sign follows from one division. Those positions, sorted, are the runs of
the upsampled and thresholded image (tests compare them with PyTorch's), and neither that image nor
a crop of it is ever made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sam2_core.mask_borders import Blocks, blocks_at, mixed_blocks
from sam2_core.rle import cancel_pairs, encode_toggles
from sam2_core.types import FloatArray, IntArray, LowResMasks, Masks

EMPTY = "empty mask: no pixel above the threshold"
NOT_FINITE = "model output is not finite"

_MASKS_AT_ONCE = 256
# Blocks of cells on borders, and pixel columns through them, worked on at once: real masks have a
# few hundred blocks each, noise has nearly every cell, and memory must not depend on which it is.
_BLOCKS_AT_ONCE = 1 << 17
_COLUMNS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class _Axis:
    """How `size` pixels sample `grid` cells along one axis, in PyTorch's float32 arithmetic."""

    weight: FloatArray  # (size,) of the cell after each pixel centre
    first: npt.NDArray[np.int64]  # (grid + 1,) first pixel whose cell before it is at least this


@lru_cache(maxsize=64)
def _axis(grid: int, size: int) -> _Axis:
    scale = np.float32(grid) / np.float32(size)
    half = np.float32(0.5)
    source = np.maximum((np.arange(size, dtype=np.float32) + half) * scale - half, np.float32(0))
    low = np.minimum(source.astype(np.int64), grid - 1)
    return _Axis(source - low.astype(np.float32), np.searchsorted(low, np.arange(grid + 1)))


@dataclass(frozen=True, eq=False)
class _Grid:
    """The image and its mask grid along both axes."""

    rows: _Axis
    columns: _Axis
    grid_hw: tuple[int, int]
    size_hw: tuple[int, int]

    @property
    def stride(self) -> int:
        """Positions of a mask on the line of all masks: one more than the image has pixels.

        So the end of a mask at the image's last pixel stays apart from the next one's first.
        """
        return self.size_hw[0] * self.size_hw[1] + 1


def _toggles(blocks: Blocks, origin_yx: npt.NDArray[np.int64], grid: _Grid) -> IntArray:
    """Positions, not sorted, where the masks change: mask * stride + column * height + row."""
    column = blocks.column + origin_yx[blocks.mask, 1]
    first = grid.columns.first[column]
    per_block = grid.columns.first[column + 1] - first
    block = np.repeat(np.arange(len(column)), per_block)
    x = np.arange(len(block)) + np.repeat(first - np.cumsum(per_block) + per_block, per_block)
    weight = grid.columns.weight[x]
    rest = np.float32(1) - weight
    upper_left, upper_right, lower_left, lower_right = blocks.values
    before = upper_left[block] * rest + upper_right[block] * weight
    after = lower_left[block] * rest + lower_right[block] * weight
    crossing = np.flatnonzero((before > 0) != (after > 0))
    block = block[crossing]
    row = (blocks.row + origin_yx[blocks.mask, 0])[block]
    y = _crossed_row(row, before[crossing], after[crossing], grid)
    line: IntArray = blocks.mask[block] * grid.stride + x[crossing] * grid.size_hw[0] + y
    return line


def _crossed_row(row: IntArray, before: FloatArray, after: FloatArray, grid: _Grid) -> IntArray:
    """Find the first pixel row behind each change of sign between grid rows `row` and `row` + 1."""
    height, cells = grid.size_hw[0], grid.grid_hw[0]
    begins = after > 0
    inside = (row >= 0) & (row < cells - 1)
    first = grid.rows.first[np.clip(row, 0, cells)]
    last = grid.rows.first[np.clip(row + 1, 0, cells)]
    fraction = np.where(inside, before.astype(np.float64) / (before - after), 0.0)
    guess = np.ceil((row + fraction + 0.5) * (height / cells) - 0.5).astype(np.int64)
    guess = np.clip(guess, first, last)

    def behind(pixel: IntArray) -> npt.NDArray[np.bool_]:
        weight = grid.rows.weight[np.clip(pixel, 0, height - 1)]
        value: FloatArray = before * (np.float32(1) - weight) + after * weight
        result: npt.NDArray[np.bool_] = (value > 0) == begins
        return result

    # The guess is off by at most one pixel, where the value is zero to rounding.
    guess += (guess < last) & ~behind(guess)
    guess -= (guess > first) & behind(guess - 1)
    # Above the first grid row and below the last the value is that row's.
    guess = np.where(row < 0, 0, guess)
    result: IntArray = np.where(row >= cells - 1, height, guess)
    return result


def _encode_stack(
    stack: npt.NDArray[np.floating], origin_yx: npt.NDArray[np.int64], grid: _Grid
) -> tuple[list[bytes], IntArray, npt.NDArray[np.bool_]]:
    """Encode masks (M, h, w): counts, areas in pixels, and which masks are not finite."""
    if len(stack) > _MASKS_AT_ONCE:
        return _encode_halves(stack, origin_yx, grid)
    mixed = mixed_blocks(stack)
    count = int(np.bitwise_count(mixed).sum(dtype=np.int64))
    columns = count * grid.size_hw[1] // grid.grid_hw[1]
    if len(stack) > 1 and (count > _BLOCKS_AT_ONCE or columns > _COLUMNS_AT_ONCE):
        return _encode_halves(stack, origin_yx, grid)
    blocks = blocks_at(stack, mixed)
    broken = np.zeros(len(stack), bool)
    broken[blocks.mask[~np.isfinite(blocks.values).all(0)]] = True
    # Without a block a mask is empty, or one value of sign; not a number counts as background.
    for index in np.flatnonzero(np.bincount(blocks.mask, minlength=len(stack)) == 0):
        broken[index] = not np.isfinite(stack[index]).all()
    with np.errstate(invalid="ignore"):
        line = _toggles(blocks, origin_yx, grid)
    line.sort()
    mask, position = np.divmod(cancel_pairs(line), grid.stride)
    kept = (position < grid.stride - 1) & ~broken[mask]
    per_mask = np.bincount(mask[kept], minlength=len(stack))
    strings, area = encode_toggles(position[kept], per_mask, grid.size_hw)
    return strings, area, broken


def _encode_halves(
    stack: npt.NDArray[np.floating], origin_yx: npt.NDArray[np.int64], grid: _Grid
) -> tuple[list[bytes], IntArray, npt.NDArray[np.bool_]]:
    half = len(stack) // 2
    first = _encode_stack(stack[:half], origin_yx[:half], grid)
    second = _encode_stack(stack[half:], origin_yx[half:], grid)
    return first[0] + second[0], np.append(first[1], second[1]), np.append(first[2], second[2])


def encode_masks(
    logits: Sequence[FloatArray] | FloatArray,
    origin_yx: npt.NDArray[np.integer],
    grid_hw: tuple[int, int],
    size_hw: tuple[int, int],
) -> tuple[list[bytes], IntArray, list[str]]:
    """Encode the masks of one image as full upsampling and thresholding at 0 would.

    Args:
        logits: N float32 or float16 arrays (h_i, w_i), windows of the mask grid.
        origin_yx: int (N, 2), each window's top left cell in the grid.
        grid_hw: the whole grid; outside a window the mask is background.
        size_hw: (H, W) of the original image.

    Returns:
        N COCO compressed counts of the whole image, int64 (N,) areas in pixels, and N reasons
        ("" for a good mask).

    """
    grid = _Grid(_axis(grid_hw[0], size_hw[0]), _axis(grid_hw[1], size_hw[1]), grid_hw, size_hw)
    origin = np.asarray(origin_yx, np.int64).reshape(-1, 2)
    count = len(logits)
    strings = [b""] * count
    area = np.zeros(count, np.int64)
    reasons = [""] * count
    for rows, stack in _stacks(logits):
        texts, pixels, broken = _encode_stack(stack, origin[rows], grid)
        area[rows] = pixels
        for row, text, bad, size in zip(rows, texts, broken, pixels, strict=True):
            strings[row] = text
            reasons[row] = NOT_FINITE if bad else "" if size else EMPTY
    return strings, area, reasons


def _stacks(
    logits: Sequence[FloatArray] | FloatArray,
) -> list[tuple[IntArray, npt.NDArray[np.floating]]]:
    """Windows of equal shape stacked, with their rows."""
    if isinstance(logits, np.ndarray):
        return [(np.arange(len(logits)), logits)] if len(logits) else []
    shapes: dict[tuple[int, ...], list[int]] = {}
    for row, window in enumerate(logits):
        shapes.setdefault(window.shape, []).append(row)
    return [(np.array(rows), np.stack([logits[row] for row in rows])) for rows in shapes.values()]


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
