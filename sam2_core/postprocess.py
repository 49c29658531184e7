"""Low-resolution logits to COCO masks of the original image, without making the masks.

The published model upsamples its mask grid bilinearly (align_corners=False) to the original size
and thresholds at 0. Where the four cells around a pixel agree in sign the pixel has that sign, so
only pixels among cells that disagree are computed: a band along the mask's border. Bilinear
interpolation is separable, so inside such a 2x2 block of cells each pixel column is interpolated at
the upper and the lower cell row first, as PyTorch does; between the two the value is linear, and
the pixel where it changes sign follows from one division. Those positions, sorted, are the runs of
the upsampled and thresholded image (tests compare them with PyTorch's), and neither that image nor
a crop of it is ever made.

Several threads encode masks at once, and every operation of NumPy hands Python's lock over: many
short ones wait for each other more than they work, so few work on long arrays.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rlemasklib import RLEMask

from sam2_core.types import FloatArray, IntArray, LowResMasks, Masks

_PACKED_AT_ONCE = 64  # masks; bounds memory: a byte for each cell
_WORD = 64  # bits


class Blocks(NamedTuple):
    """2x2 blocks of cells that differ in sign: cells (row, column) to (row + 1, column + 1).

    Row -1 and the row below the window are background, so that every run ends; the column behind
    the window repeats its last.
    """

    mask: IntArray
    row: IntArray
    column: IntArray
    values: FloatArray  # (4, N): upper left, upper right, lower left, lower right


def _positive(stack: npt.NDArray[np.floating], words: int) -> npt.NDArray[np.uint64]:
    """Which cells are above 0: a bit each, least significant first, (M, height, words)."""
    masks, height, width = stack.shape
    # A half float is positive if it is as an integer; numpy compares integers much faster.
    positive = stack.view(np.int16) > 0 if stack.dtype == np.float16 else stack > 0
    if width % _WORD:
        padded = np.zeros((masks, height, words * _WORD), bool)
        padded[:, :, :width] = positive
        positive = padded
    packed = np.packbits(positive.reshape(-1), bitorder="little")
    return packed.view("<u8").reshape(masks, height, words)


def mixed_blocks(stack: npt.NDArray[np.floating]) -> npt.NDArray[np.uint64]:
    """Which blocks differ in sign: a bit for each column, row by row of all masks.

    Rows are whole words, least significant bit first, and a mask has two more rows than cells: the
    one above it comes first, and that behind its last block has no bit set.
    """
    masks, height, width = stack.shape
    words = -(-width // _WORD)
    rows = np.zeros((masks, height + 2, words), np.uint64)
    for start in range(0, masks, _PACKED_AT_ONCE):
        some_masks = slice(start, start + _PACKED_AT_ONCE)
        rows[some_masks, 1:-1] = _positive(stack[some_masks], words)
    # One long line of words: shifted by one it is every cell's right neighbour, by a row the one
    # below. Loops over rows of a few words each would take several times longer.
    cells = rows.reshape(-1)
    right = cells >> np.uint64(1)
    right[:-1] |= cells[1:] << np.uint64(_WORD - 1)
    last = np.uint64(1 << ((width - 1) % _WORD))
    right[words - 1 :: words] &= last - np.uint64(1)
    right[words - 1 :: words] |= cells[words - 1 :: words] & last
    every = cells & right
    some = cells | right
    mixed: npt.NDArray[np.uint64] = np.zeros_like(cells)
    mixed[:-words] = (every[:-words] & every[words:]) ^ (some[:-words] | some[words:])
    return mixed


def blocks_at(stack: npt.NDArray[np.floating], mixed: npt.NDArray[np.uint64]) -> Blocks:
    """Return the blocks of masks (M, height, width) that `mixed_blocks` found."""
    _, height, width = stack.shape
    at = np.flatnonzero(mixed != 0)
    bits = np.unpackbits(mixed[at].astype("<u8").view(np.uint8), bitorder="little")
    which, bit = np.divmod(np.flatnonzero(bits), _WORD)
    line, word = np.divmod(at[which], -(-width // _WORD))
    mask, row = np.divmod(line, height + 2)
    row, column = row - 1, word * _WORD + bit
    above, below = row < 0, row >= height - 1
    upper = (mask * height + row + above) * width + column
    lower = upper + np.where(above | below, 0, width)
    aside = column < width - 1
    flat = stack.reshape(-1)
    values = np.empty((4, len(mask)), np.float32)
    for index, cell in enumerate((upper, upper + aside, lower, lower + aside)):
        values[index] = flat[cell]
    values[:2, above] = -1
    values[2:, below] = -1
    return Blocks(mask, row, column, values)


EMPTY = "empty mask: no pixel above the threshold"
NOT_FINITE = "model output is not finite"

# Blocks of cells on borders, and pixel columns through them, worked on at once: real masks have a
# few hundred blocks each, noise has nearly every cell, and memory must not depend on which it is.
_BLOCKS_AT_ONCE = 1 << 17
_COLUMNS_AT_ONCE = 1 << 20


def cancel_pairs(toggles: IntArray) -> IntArray:
    """Drop positions that occur an even number of times: the value changes there and back.

    Args:
        toggles: int64 ascending positions where the mask's value changes.

    """
    positions, times = np.unique(toggles, return_counts=True)
    return positions[times % 2 == 1]


def encode_toggles(
    toggles: IntArray, per_mask: IntArray, size_hw: tuple[int, int]
) -> tuple[list[bytes], IntArray]:
    """Encode masks given by the positions where their values change.

    Args:
        toggles: int64, all masks' positions one mask after another, each mask's strictly ascending
            in [0, H * W) of the image flattened by columns, starting from background.
        per_mask: int64 (N,), how many positions each mask has.
        size_hw: (H, W).

    Returns:
        N COCO compressed `counts`, and int64 (N,) areas in pixels.

    """
    pixels = size_hw[0] * size_hw[1]
    # Each mask's positions followed by the end of the image; runs are their differences.
    ends = np.cumsum(per_mask)
    edges = np.insert(toggles, ends, pixels)
    counts = np.diff(edges, prepend=0)
    starts = ends - per_mask + np.arange(len(per_mask))
    counts[starts] = edges[starts]
    runs = np.split(counts.astype(np.uint32), starts[1:])
    masks = [RLEMask.from_counts(counts, size_hw, validate_sum=False) for counts in runs]
    area = np.array([mask.area() for mask in masks], np.int64)
    return [mask.to_dict()["counts"] for mask in masks], area


class _Axis(NamedTuple):
    """How pixels sample `grid` cells along one axis, in PyTorch's float32 arithmetic.

    For T stretches of pixels, one behind the other.
    """

    weight: FloatArray  # (pixels of all stretches,) of the cell after each pixel centre
    first: IntArray  # (T * (grid + 1),) first pixel whose cell before it is at least this
    start: IntArray  # (T,) a stretch's first pixel in `weight`
    stop: IntArray  # (T,) behind its last
    shift: IntArray  # (T,) what makes a pixel of `weight` one of the image


def _stretches(grid: int, low: IntArray, high: IntArray) -> _Axis:
    """Sample stretches of pixels, int64 (T,) from `low` to `high`, each by all cells."""
    size = high - low
    stop = np.cumsum(size)
    start = stop - size
    stretch = np.repeat(np.arange(len(size)), size)
    pixel = (np.arange(len(stretch)) - start[stretch]).astype(np.float32)
    scale = np.float32(grid) / size.astype(np.float32)
    half = np.float32(0.5)
    source = np.maximum((pixel + half) * scale[stretch] - half, np.float32(0))
    cell = np.minimum(source.astype(np.int64), grid - 1)
    every = np.arange(len(size) * (grid + 1))
    first = np.searchsorted(stretch * (grid + 1) + cell, every)
    return _Axis(source - cell.astype(np.float32), first, start, stop, low - start)


def _toggles(
    blocks: Blocks, regions_xyxy_px: IntArray, grid_hw: tuple[int, int], height_px: int
) -> tuple[IntArray, IntArray]:
    """Return each change of the masks: its mask, and column * height + row of the image.

    Args:
        blocks: rows and columns of the whole grid.
        regions_xyxy_px: int64 (M, 4), what each mask's grid lies over.
        grid_hw: the grid.
        height_px: of the image.

    """
    regions, which = np.unique(regions_xyxy_px, axis=0, return_inverse=True)
    left, top, right, bottom = regions.T
    rows, columns = _stretches(grid_hw[0], top, bottom), _stretches(grid_hw[1], left, right)
    region = which.reshape(-1)[blocks.mask]
    cell = blocks.column + region * (grid_hw[1] + 1)
    first = columns.first[cell]
    per_block = columns.first[cell + 1] - first
    block = np.repeat(np.arange(len(cell)), per_block)
    x = np.arange(len(block)) + np.repeat(first - np.cumsum(per_block) + per_block, per_block)
    weight = columns.weight[x]
    rest = np.float32(1) - weight
    upper_left, upper_right, lower_left, lower_right = blocks.values
    before = upper_left[block] * rest + upper_right[block] * weight
    after = lower_left[block] * rest + lower_right[block] * weight
    crossing = np.flatnonzero((before > 0) != (after > 0))
    block = block[crossing]
    region = region[block]
    y = _crossed_row(blocks.row[block], before[crossing], after[crossing], region, rows)
    position: IntArray = (x[crossing] + columns.shift[region]) * height_px + y
    return blocks.mask[block], position


def _crossed_row(
    row: IntArray, before: FloatArray, after: FloatArray, region: IntArray, rows: _Axis
) -> IntArray:
    """Find the first pixel row behind each change of sign between grid rows `row` and `row` + 1."""
    start, stop = rows.start[region], rows.stop[region]
    cells = len(rows.first) // len(rows.start) - 1
    begins = after > 0
    inside = (row >= 0) & (row < cells - 1)
    at = region * (cells + 1)
    first = rows.first[at + np.clip(row, 0, cells)]
    last = rows.first[at + np.clip(row + 1, 0, cells)]
    fraction = np.where(inside, before.astype(np.float64) / (before - after), 0.0)
    guess = np.ceil((row + fraction + 0.5) * ((stop - start) / cells) - 0.5).astype(np.int64)
    guess = np.clip(guess + start, first, last)

    def behind(pixel: IntArray) -> npt.NDArray[np.bool_]:
        weight = rows.weight[np.clip(pixel, 0, len(rows.weight) - 1)]
        value: FloatArray = before * (np.float32(1) - weight) + after * weight
        return (value > 0) == begins

    # The guess is off by at most one pixel, where the value is zero to rounding.
    guess += (guess < last) & ~behind(guess)
    guess -= (guess > first) & behind(guess - 1)
    # Above the first grid row and below the last the value is that row's.
    guess = np.where(row < 0, start, guess)
    guess = np.where(row >= cells - 1, stop, guess)
    return guess + rows.shift[region]


# Counts, areas in pixels, and which masks are not finite.
_Encoded = tuple[list[bytes], IntArray, npt.NDArray[np.bool_]]


def _encode(
    logits: npt.NDArray[np.floating], regions_xyxy_px: IntArray, size_hw: tuple[int, int]
) -> _Encoded:
    """Encode masks (M, h, w), in halves where that is much at once."""
    mixed = mixed_blocks(logits)
    count = int(np.bitwise_count(mixed).sum(dtype=np.int64))
    columns = count * int(np.diff(regions_xyxy_px[:, ::2]).mean()) // logits.shape[2]
    half = len(logits) // 2
    if half and (count > _BLOCKS_AT_ONCE or columns > _COLUMNS_AT_ONCE):
        first, second = (
            _encode(logits[some], regions_xyxy_px[some], size_hw)
            for some in (slice(half), slice(half, None))
        )
        return first[0] + second[0], np.append(first[1], second[1]), np.append(first[2], second[2])
    blocks = blocks_at(logits, mixed)
    broken = np.zeros(len(logits), bool)
    broken[blocks.mask[~np.isfinite(blocks.values).all(0)]] = True
    # Without a block a mask is empty, or one value of sign; not a number counts as background.
    for index in np.flatnonzero(np.bincount(blocks.mask, minlength=len(logits)) == 0):
        broken[index] = not np.isfinite(logits[index]).all()
    with np.errstate(invalid="ignore"):
        mask, position = _toggles(blocks, regions_xyxy_px, logits.shape[1:], size_hw[0])
    # One line of all masks; a mask that ends at the last pixel stays apart from the next one.
    pixels = size_hw[0] * size_hw[1]
    mask, position = np.divmod(cancel_pairs(mask * (pixels + 1) + position), pixels + 1)
    kept = (position < pixels) & ~broken[mask]
    per_mask = np.bincount(mask[kept], minlength=len(logits))
    strings, area = encode_toggles(position[kept], per_mask, size_hw)
    return strings, area, broken


def encode_masks(
    logits: FloatArray, size_hw: tuple[int, int], regions_xyxy_px: IntArray | None = None
) -> tuple[list[bytes], IntArray, list[str]]:
    """Encode the masks of one image as full upsampling and thresholding at 0 would.

    Args:
        logits: float32 or float16 (N, G, G).
        size_hw: (H, W) of the original image.
        regions_xyxy_px: int64 (N, 4), the part of the image that each mask's grid lies over; the
            mask is background elsewhere. None: the whole image.

    Returns:
        N COCO compressed counts of the whole image, int64 (N,) areas in pixels, and N reasons
        ("" for a good mask).

    """
    if not len(logits):
        return [], np.zeros(0, np.int64), []
    if regions_xyxy_px is None:
        regions_xyxy_px = np.tile(np.array([0, 0, size_hw[1], size_hw[0]]), (len(logits), 1))
    strings, area, broken = _encode(logits, regions_xyxy_px, size_hw)
    reasons = [
        NOT_FINITE if bad else "" if size else EMPTY for bad, size in zip(broken, area, strict=True)
    ]
    return strings, area, reasons


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
    rows = np.arange(len(low_res)) if rows is None else rows
    all_reasons = [""] * len(low_res) if reasons is None else list(reasons)
    strings, area, why = encode_masks(low_res.logits, size_hw, regions_xyxy_px)
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
