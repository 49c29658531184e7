"""Prompts into decoder calls, and outputs back into frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sam2_core.backends.protocol import PendingMasks
from sam2_core.types import POINT_PADDING, LowResMasks, Prompts


def bucket_for(count: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `count`, or `count` itself above the largest."""
    return next((size for size in buckets if size >= count), count)


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


def collect(
    pending: Sequence[tuple[npt.NDArray[np.int64], PendingMasks]], grid: int
) -> LowResMasks:
    """Wait for decoder outputs and put them into one, as `gather`."""
    return gather([(rows, part.wait()) for rows, part in pending], grid)


def gather(parts: Sequence[tuple[npt.NDArray[np.int64], LowResMasks]], grid: int) -> LowResMasks:
    """Put decoder outputs into one, each row at its position among all."""
    together = joined([part for _, part in parts], grid)
    if len(parts) < 2:
        return together
    return slice_low_res(together, np.argsort(np.concatenate([rows for rows, _ in parts])))


def joined(parts: Sequence[LowResMasks], grid: int) -> LowResMasks:
    """Put decoder outputs one behind another; without any there are no rows of this grid."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        nothing = np.zeros(0, np.float32)
        return LowResMasks(np.zeros((0, grid, grid), np.float32), nothing, nothing, nothing)
    return LowResMasks(
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.predicted_iou for part in parts]),
        np.concatenate([part.object_score for part in parts]),
        np.concatenate([part.stability for part in parts]),
    )


def slice_low_res(masks: LowResMasks, rows: slice | npt.NDArray[np.int64]) -> LowResMasks:
    """Return some rows of a decoder's output."""
    return LowResMasks(
        masks.logits[rows],
        masks.predicted_iou[rows],
        masks.object_score[rows],
        masks.stability[rows],
    )
