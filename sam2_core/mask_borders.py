"""Where the cells of low-resolution masks change sign: few operations on long arrays.

Several threads encode masks at once, and every operation of NumPy hands Python's lock over: many
short ones wait for each other more than they work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sam2_core.types import FloatArray, IntArray

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
