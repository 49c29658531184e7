"""Prompts into decoder calls, and outputs back into frames."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sam2_core.types import POINT_PADDING, LowResMasks, Prompts


def bucket_for(count: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `count`, or `count` itself above the largest."""
    return next((size for size in buckets if size >= count), count)


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
            part = prompts.chosen(rows).first_points(count)
            key = (count, prompts.mask_logits is not None)
            found.setdefault(key, []).append((rows + start, part))
        start += len(prompts)
    return [
        (np.concatenate([rows for rows, _ in parts]), Prompts.joined([part for _, part in parts]))
        for parts in found.values()
    ]


def gather(parts: Sequence[tuple[npt.NDArray[np.int64], LowResMasks]]) -> LowResMasks:
    """Put decoder outputs into one, each row at its position among all."""
    together = LowResMasks.joined([part for _, part in parts])
    if len(parts) < 2:
        return together
    return together.chosen(np.argsort(np.concatenate([rows for rows, _ in parts])))
