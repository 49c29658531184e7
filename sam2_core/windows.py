"""Decoding only inside a window of the image around each box.

Upscaling is most of what is left of the decoder, and a box covers a few percent of a driving frame.
Windows come in fixed sizes (`windows` of model.json, in cells of 16 model pixels); a box gets the
smallest that holds it with a margin, and a mask that reaches its window's border is decoded again
in the next larger one, in the end in the whole grid. So nothing is ever cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sam2_core.batching import gather, no_masks, slice_prompts
from sam2_core.types import BOX_BOTTOM_RIGHT, BOX_TOP_LEFT, POINT_PADDING, LowResMasks, Prompts

CELL_MODEL_PX = 16
MASK_CELLS = 4  # cells of the mask grid along a side of one cell
# Of the box's size on every side, and at least one cell: masks seldom leave their box by more.
_MARGIN = 0.1
# Above this on the border, the mask or what its stability is counted from may go on outside.
_REACHES = -1.0
_BOX = (BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING)

Cells = npt.NDArray[np.int32]
# Decodes prompts in windows of a side, from their first (row, column); side 0: the whole grid.
DecodeWindow = Callable[[Prompts, int, Cells | None], LowResMasks]


def is_boxes(prompts: Prompts) -> bool:
    """Whether every prompt is a box: only a box says where its mask will be."""
    labels = prompts.labels
    return prompts.mask_logits is None and labels.shape[1:] == (3,) and bool((labels == _BOX).all())


def choose_sides(prompts: Prompts, sides: Sequence[int], cells: int) -> npt.NDArray[np.int64]:
    """Return the window side for each box, int64 (P,): the smallest that holds it; 0 for none.

    Args:
        prompts: P boxes.
        sides: window sides there are, in cells, ascending.
        cells: cells along a side of the image.

    """
    first, last = _extent(prompts, cells)
    needed = (last - first).max(1)
    chosen = np.zeros(len(prompts), np.int64)
    for side in reversed(sides):
        chosen[needed <= side] = side
    return chosen


def place_windows(prompts: Prompts, side: int, cells: int) -> Cells:
    """Return the first (row, column) of each box's window, int32 (P, 2), inside the image."""
    first, last = _extent(prompts, cells)
    start = np.floor((first + last - side) / 2)
    return np.clip(start, 0, cells - side).astype(np.int32)


def _extent(
    prompts: Prompts, cells: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """First and last + 1 (row, column) of the cells that each box with its margin touches."""
    corners = prompts.points_model[:, :2, ::-1].astype(np.float64) / CELL_MODEL_PX
    low, high = corners.min(1), corners.max(1)
    margin = np.maximum((high - low) * _MARGIN, 1.0)
    return np.clip(np.floor(low - margin), 0, cells), np.clip(np.ceil(high + margin), 0, cells)


def reaches_border(
    logits: npt.NDArray[np.floating], window_yx: Cells, cells: int
) -> npt.NDArray[np.bool_]:
    """Whether masks (M, h, w) go on outside their windows; the image ends without that."""
    side = logits.shape[1] // MASK_CELLS
    row, column = window_yx[:, 0], window_yx[:, 1]
    above = (logits[:, 0] > _REACHES).any(1) & (row > 0)
    below = (logits[:, -1] > _REACHES).any(1) & (row < cells - side)
    left = (logits[:, :, 0] > _REACHES).any(1) & (column > 0)
    right = (logits[:, :, -1] > _REACHES).any(1) & (column < cells - side)
    result: npt.NDArray[np.bool_] = above | below | left | right
    return result


def decode_in_windows(
    prompts: Prompts, decode: DecodeWindow, sides: Sequence[int], cells: int, *, grow: bool = True
) -> LowResMasks:
    """Decode each prompt in the smallest window that holds its mask.

    Args:
        prompts: P prompts; others than boxes are decoded in the whole grid.
        decode: decodes some of the prompts in windows of one size.
        sides: window sides there are, in cells.
        cells: cells along a side of the image.
        grow: decode again in a larger window what reaches its window's border. Off cuts such
            masks: only to measure what growing costs.

    """
    grid = cells * MASK_CELLS
    if not len(prompts):
        return no_masks(grid)
    ascending = sorted(side for side in sides if side < cells)
    if not ascending or not is_boxes(prompts):
        return decode(prompts, 0, None)
    chosen = choose_sides(prompts, ascending, cells)
    parts: list[tuple[npt.NDArray[np.int64], LowResMasks]] = []
    for side, larger in zip(ascending, [*ascending[1:], 0], strict=True):
        rows = np.flatnonzero(chosen == side)
        if not len(rows):
            continue
        some = slice_prompts(prompts, rows)
        window_yx = place_windows(some, side, cells)
        decoded = decode(some, side, window_yx)
        good = np.ones(len(rows), bool)
        if grow:
            good = ~reaches_border(np.asarray(decoded.logits), window_yx, cells)
            chosen[rows[~good]] = larger
        parts.append((rows[good], _kept(decoded, good, window_yx)))
    rows = np.flatnonzero(chosen == 0)
    if len(rows):
        parts.append((rows, decode(slice_prompts(prompts, rows), 0, None)))
    return gather(parts, len(prompts), grid)


def _kept(decoded: LowResMasks, good: npt.NDArray[np.bool_], window_yx: Cells) -> LowResMasks:
    """Return the masks that stayed inside, with their place in the mask grid."""
    logits = np.asarray(decoded.logits)
    return LowResMasks(
        logits if good.all() else logits[good],
        window_yx[good] * MASK_CELLS,
        decoded.grid_hw,
        decoded.predicted_iou[good],
        decoded.object_score[good],
        decoded.stability[good],
    )
