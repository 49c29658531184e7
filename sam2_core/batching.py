"""Prompts into decoder calls, whole or in windows around boxes, and outputs back into frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sam2_core.backends.protocol import PendingMasks
from sam2_core.types import BOX_BOTTOM_RIGHT, BOX_TOP_LEFT, POINT_PADDING, LowResMasks, Prompts


def bucket_for(count: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `count`; the largest where none does."""
    return next((size for size in buckets if size >= count), buckets[-1])


def slice_prompts(
    prompts: Prompts, rows: slice | npt.NDArray[np.int64], points: int | None = None
) -> Prompts:
    """Return some of the prompts, with their first `points` points."""
    logits = prompts.mask_logits
    return Prompts(
        prompts.points_model[rows, :points],
        prompts.labels[rows, :points],
        prompts.image_index[rows],
        None if logits is None else logits[rows],
    )


def group_prompts(frames: Sequence[Prompts]) -> list[tuple[npt.NDArray[np.int64], Prompts]]:
    """Sort the prompts of a batch of frames into groups that may share a decoder call.

    Prompts share a call when they have the same number of points (every point more, a padding point
    too, is a token that the others attend to, so padding to a common length would change masks)
    and when they all have a mask prompt or none has.

    Args:
        frames: the prompts of each frame of the batch; real points first, then padding.

    Returns:
        For each group the positions of its prompts among all prompts of the batch, and the prompts.

    """
    found: dict[tuple[int, bool], list[tuple[npt.NDArray[np.int64], Prompts]]] = {}
    start = 0
    for prompts in frames:
        # One padding point is part of the published prompt, more are not.
        points = (prompts.labels != POINT_PADDING).sum(1) + 1
        for count in np.unique(points).tolist():
            rows = np.flatnonzero(points == count)
            part = slice_prompts(prompts, rows, count)
            key = (count, prompts.mask_logits is not None)
            found.setdefault(key, []).append((rows + start, part))
        start += len(prompts)
    groups = []
    for (_, masked), parts in found.items():
        rows = np.concatenate([one for one, _ in parts])
        groups.append((rows, _join([part for _, part in parts], masked)))
    return groups


def _join(parts: Sequence[Prompts], masked: bool) -> Prompts:
    return Prompts(
        np.concatenate([part.points_model for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.image_index for part in parts]),
        np.concatenate([part.mask_logits for part in parts if part.mask_logits is not None])
        if masked
        else None,
    )


def no_masks(grid: int) -> LowResMasks:
    """Return the decoder's output for no prompts."""
    nothing = np.zeros(0, np.float32)
    return LowResMasks([], np.zeros((0, 2), np.int32), (grid, grid), nothing, nothing, nothing)


def collect(
    pending: Sequence[tuple[npt.NDArray[np.int64], PendingMasks]], total: int, grid: int
) -> LowResMasks:
    """Wait for decoder outputs and put them into one, as `gather`."""
    return gather([(rows, part.wait()) for rows, part in pending], total, grid)


def gather(
    parts: Sequence[tuple[npt.NDArray[np.int64], LowResMasks]], total: int, grid: int
) -> LowResMasks:
    """Put decoder outputs into one, each row at its position among `total`."""
    if not parts:
        return no_masks(grid)
    if len(parts) == 1 and np.array_equal(parts[0][0], np.arange(total)):
        return parts[0][1]
    logits: list[npt.NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * total
    origin = np.zeros((total, 2), np.int32)
    scores = np.zeros((3, total), np.float32)
    for rows, part in parts:
        for row, window in zip(rows, part.logits, strict=True):
            logits[row] = window
        origin[rows] = part.origin_yx
        scores[:, rows] = part.predicted_iou, part.object_score, part.stability
    return LowResMasks(logits, origin, parts[0][1].grid_hw, scores[0], scores[1], scores[2])


def slice_low_res(masks: LowResMasks, rows: slice) -> LowResMasks:
    """Return consecutive rows of a decoder's output."""
    return LowResMasks(
        masks.logits[rows],
        masks.origin_yx[rows],
        masks.grid_hw,
        masks.predicted_iou[rows],
        masks.object_score[rows],
        masks.stability[rows],
    )


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
