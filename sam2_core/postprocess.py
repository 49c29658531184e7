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
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
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
    """How pixels sample `grid` cells along one axis, in PyTorch's float32 arithmetic.

    For T stretches of pixels, one behind the other: every mask's own, or one that all masks share.
    """

    weight: FloatArray  # (pixels of all stretches,) of the cell after each pixel centre
    first: IntArray  # (T * (grid + 1),) first pixel whose cell before it is at least this
    start: IntArray  # (T,) a stretch's first pixel in `weight`
    stop: IntArray  # (T,) behind its last
    shift: IntArray  # (T,) what makes a pixel of `weight` one of the image

    def __post_init__(self) -> None:
        freeze_arrays(
            self, weight="float32 (pixels)", first="int64 (cells)", start="int64 (T)",
            stop="int64 (T)", shift="int64 (T)",
        )  # fmt: skip


def _stretches(grid: int, low: IntArray, high: IntArray) -> _Axis:
    """Sample stretches of pixels, int64 (T,) from `low` to `high`, each by all cells."""
    size = high - low
    stop = np.cumsum(size)
    start = stop - size
    table = np.repeat(np.arange(len(size)), size)
    pixel = (np.arange(len(table)) - start[table]).astype(np.float32)
    scale = np.float32(grid) / size.astype(np.float32)
    half = np.float32(0.5)
    source = np.maximum((pixel + half) * scale[table] - half, np.float32(0))
    cell = np.minimum(source.astype(np.int64), grid - 1)
    key = table * (grid + 1)
    every = np.arange(len(size) * (grid + 1))
    first = np.searchsorted(key + cell, every)
    return _Axis(source - cell.astype(np.float32), first, start, stop, low - start)


@lru_cache(maxsize=64)
def _whole(grid: int, size: int) -> _Axis:
    return _stretches(grid, np.zeros(1, np.int64), np.array([size]))


@dataclass(frozen=True, eq=False)
class _Grid:
    """The image and its mask grid along both axes, of all masks or of each its own part."""

    rows: _Axis
    columns: _Axis
    grid_hw: tuple[int, int]
    size_hw: tuple[int, int]

    @staticmethod
    def of(
        grid_hw: tuple[int, int], size_hw: tuple[int, int], regions_xyxy_px: IntArray | None
    ) -> _Grid:
        """Lay grids over the whole image, or each mask's over a region of it."""
        if regions_xyxy_px is None:
            rows, columns = _whole(grid_hw[0], size_hw[0]), _whole(grid_hw[1], size_hw[1])
        else:
            left, top, right, bottom = regions_xyxy_px.T
            rows = _stretches(grid_hw[0], top, bottom)
            columns = _stretches(grid_hw[1], left, right)
        return _Grid(rows, columns, grid_hw, size_hw)

    @property
    def stride(self) -> int:
        """Positions of a mask on the line of all masks: one more than the image has pixels.

        So the end of a mask at the image's last pixel stays apart from the next one's first.
        """
        return self.size_hw[0] * self.size_hw[1] + 1

    def table(self, mask: IntArray) -> IntArray:
        """Which stretch each mask has."""
        return mask if len(self.rows.start) > 1 else np.zeros(1, np.int64)


def _toggles(blocks: Blocks, origin_yx: npt.NDArray[np.int64], grid: _Grid) -> IntArray:
    """Positions, not sorted, where the masks change: mask * stride + column * height + row."""
    columns = grid.columns
    column = blocks.column + origin_yx[blocks.mask, 1]
    column += grid.table(blocks.mask) * (grid.grid_hw[1] + 1)
    first = columns.first[column]
    per_block = columns.first[column + 1] - first
    block = np.repeat(np.arange(len(column)), per_block)
    x = np.arange(len(block)) + np.repeat(first - np.cumsum(per_block) + per_block, per_block)
    weight = columns.weight[x]
    rest = np.float32(1) - weight
    upper_left, upper_right, lower_left, lower_right = blocks.values
    before = upper_left[block] * rest + upper_right[block] * weight
    after = lower_left[block] * rest + lower_right[block] * weight
    crossing = np.flatnonzero((before > 0) != (after > 0))
    block = block[crossing]
    mask = blocks.mask[block]
    table = grid.table(mask)
    row = blocks.row[block] + origin_yx[mask, 0]
    y = _crossed_row(row, before[crossing], after[crossing], table, grid)
    column = x[crossing] + columns.shift[table]
    line: IntArray = mask * grid.stride + column * grid.size_hw[0] + y
    return line


def _crossed_row(
    row: IntArray, before: FloatArray, after: FloatArray, table: IntArray, grid: _Grid
) -> IntArray:
    """Find the first pixel row behind each change of sign between grid rows `row` and `row` + 1."""
    rows, cells = grid.rows, grid.grid_hw[0]
    start, stop = rows.start[table], rows.stop[table]
    begins = after > 0
    inside = (row >= 0) & (row < cells - 1)
    at = table * (cells + 1)
    first = rows.first[at + np.clip(row, 0, cells)]
    last = rows.first[at + np.clip(row + 1, 0, cells)]
    fraction = np.where(inside, before.astype(np.float64) / (before - after), 0.0)
    guess = np.ceil((row + fraction + 0.5) * ((stop - start) / cells) - 0.5).astype(np.int64)
    guess = np.clip(guess + start, first, last)

    def behind(pixel: IntArray) -> npt.NDArray[np.bool_]:
        weight = rows.weight[np.clip(pixel, 0, len(rows.weight) - 1)]
        value: FloatArray = before * (np.float32(1) - weight) + after * weight
        result: npt.NDArray[np.bool_] = (value > 0) == begins
        return result

    # The guess is off by at most one pixel, where the value is zero to rounding.
    guess += (guess < last) & ~behind(guess)
    guess -= (guess > first) & behind(guess - 1)
    # Above the first grid row and below the last the value is that row's.
    guess = np.where(row < 0, start, guess)
    guess = np.where(row >= cells - 1, stop, guess)
    result: IntArray = guess + rows.shift[table]
    return result


@dataclass(frozen=True, eq=False)
class _Stack:
    """Masks (M, h, w) of one shape, the place of each in its grid, and that of its grid."""

    logits: npt.NDArray[np.floating]
    origin_yx: npt.NDArray[np.int64]
    regions_xyxy_px: IntArray | None
    grid_hw: tuple[int, int]
    size_hw: tuple[int, int]

    def __post_init__(self) -> None:
        freeze_arrays(
            self, logits="float (M, h, w)", origin_yx="int64 (M, 2)", regions_xyxy_px="int64 (M, 4)"
        )

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: slice) -> _Stack:
        regions = None if self.regions_xyxy_px is None else self.regions_xyxy_px[rows]
        logits, origin = self.logits[rows], self.origin_yx[rows]
        return replace(self, logits=logits, origin_yx=origin, regions_xyxy_px=regions)

    def width_px(self) -> int:
        """Pixels across a mask's grid, of several ones the mean."""
        if self.regions_xyxy_px is None:
            return self.size_hw[1]
        left, _, right, _ = self.regions_xyxy_px.T
        return int((right - left).mean())


# Counts, areas in pixels, and which masks are not finite.
_Encoded = tuple[list[bytes], IntArray, npt.NDArray[np.bool_]]


def _encode_stack(stack: _Stack) -> _Encoded:
    if len(stack) > _MASKS_AT_ONCE:
        return _encode_halves(stack)
    mixed = mixed_blocks(stack.logits)
    count = int(np.bitwise_count(mixed).sum(dtype=np.int64))
    columns = count * stack.width_px() // stack.grid_hw[1]
    if len(stack) > 1 and (count > _BLOCKS_AT_ONCE or columns > _COLUMNS_AT_ONCE):
        return _encode_halves(stack)
    blocks = blocks_at(stack.logits, mixed)
    broken = np.zeros(len(stack), bool)
    broken[blocks.mask[~np.isfinite(blocks.values).all(0)]] = True
    # Without a block a mask is empty, or one value of sign; not a number counts as background.
    for index in np.flatnonzero(np.bincount(blocks.mask, minlength=len(stack)) == 0):
        broken[index] = not np.isfinite(stack.logits[index]).all()
    grid = _Grid.of(stack.grid_hw, stack.size_hw, stack.regions_xyxy_px)
    with np.errstate(invalid="ignore"):
        line = _toggles(blocks, stack.origin_yx, grid)
    line.sort()
    mask, position = np.divmod(cancel_pairs(line), grid.stride)
    kept = (position < grid.stride - 1) & ~broken[mask]
    per_mask = np.bincount(mask[kept], minlength=len(stack))
    strings, area = encode_toggles(position[kept], per_mask, grid.size_hw)
    return strings, area, broken


def _encode_halves(stack: _Stack) -> _Encoded:
    half = len(stack) // 2
    first, second = _encode_stack(stack[:half]), _encode_stack(stack[half:])
    return first[0] + second[0], np.append(first[1], second[1]), np.append(first[2], second[2])


def encode_masks(
    logits: Sequence[FloatArray] | FloatArray,
    origin_yx: npt.NDArray[np.integer],
    grid_hw: tuple[int, int],
    size_hw: tuple[int, int],
    regions_xyxy_px: IntArray | None = None,
) -> tuple[list[bytes], IntArray, list[str]]:
    """Encode the masks of one image as full upsampling and thresholding at 0 would.

    Args:
        logits: N float32 or float16 arrays (h_i, w_i), windows of the mask grid.
        origin_yx: int (N, 2), each window's top left cell in the grid.
        grid_hw: the whole grid; outside a window the mask is background.
        size_hw: (H, W) of the original image.
        regions_xyxy_px: int64 (N, 4), the part of the image that each mask's grid lies over; the
            mask is background elsewhere. None: the whole image.

    Returns:
        N COCO compressed counts of the whole image, int64 (N,) areas in pixels, and N reasons
        ("" for a good mask).

    """
    origin = np.asarray(origin_yx, np.int64).reshape(-1, 2)
    count = len(logits)
    strings = [b""] * count
    area = np.zeros(count, np.int64)
    reasons = [""] * count
    for rows, stack in _stacks(logits):
        regions = None if regions_xyxy_px is None else regions_xyxy_px[rows]
        texts, pixels, broken = _encode_stack(
            _Stack(stack, origin[rows], regions, grid_hw, size_hw)
        )
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
    regions_xyxy_px: IntArray | None = None,
) -> Masks:
    """Turn decoded prompts of one image into its `Masks`, one row for each of the caller's prompts.

    Args:
        low_res: decoder output for V prompts.
        size_hw: (H, W) of the original image.
        rows: int64 (V,), the caller's row of each prompt; all rows in order when None.
        reasons: N reasons, "" where a prompt was decoded; V empty ones when None.
        regions_xyxy_px: int64 (V, 4), what each prompt's close-up shows; None for whole frames.

    """
    count = len(low_res.predicted_iou)
    rows = np.arange(count) if rows is None else rows
    all_reasons = [""] * count if reasons is None else list(reasons)
    strings, area, why = encode_masks(
        low_res.logits, low_res.origin_yx, low_res.grid_hw, size_hw, regions_xyxy_px
    )
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
