"""Low-resolution masks on the wire: each cut to the cells that say something.

Outside a window a mask is background, so of a mask that covers a percent of its grid the rest need
not travel. What is left gives the same mask of the image, to the pixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sam2_core.types import AutolabelError, FloatArray, LowResMasks


def cropped(
    masks: LowResMasks, rows: slice, *, whole: bool = False
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], FloatArray]:
    """Cut masks to their positive cells and one more on every side.

    Args:
        masks: of a decoder.
        rows: which of them.
        whole: leave them as they are.

    Returns:
        int32 (P, 4) top, left, height and width in the mask grid of each window, and the windows'
        float32 logits one after another.

    """
    windows, parts = [], []
    for logits, origin in zip(masks.logits[rows], masks.origin_yx[rows], strict=True):
        window = np.asarray(logits)
        top, bottom, left, right = (
            (0, window.shape[0], 0, window.shape[1]) if whole else _extent(window)
        )
        windows.append((int(origin[0]) + top, int(origin[1]) + left, bottom - top, right - left))
        parts.append(window[top:bottom, left:right].astype(np.float32, copy=False).reshape(-1))
    flat = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    return np.array(windows, np.int32).reshape(-1, 4), flat


def _extent(window: np.ndarray[Any, Any]) -> tuple[int, int, int, int]:
    """First row, last + 1, first column, last + 1; one cell where nothing is positive."""
    if not np.isfinite(window).all():  # whoever makes the mask says so
        return 0, window.shape[0], 0, window.shape[1]
    positive = window > 0
    rows, columns = np.flatnonzero(positive.any(1)), np.flatnonzero(positive.any(0))
    if not len(rows):
        return 0, 1, 0, 1
    return (
        max(int(rows[0]) - 1, 0), min(int(rows[-1]) + 2, window.shape[0]),
        max(int(columns[0]) - 1, 0), min(int(columns[-1]) + 2, window.shape[1]),
    )  # fmt: skip


def pasted(
    windows: np.ndarray[Any, Any], flat: np.ndarray[Any, Any], scores: np.ndarray[Any, Any],
    grid: int,
) -> LowResMasks:  # fmt: skip
    """Return masks again from what `cropped` made.

    Args:
        windows: int32 (P, 4).
        flat: their logits.
        scores: float32 (3, P), predicted IoU, object score, stability.
        grid: G, side of the mask grid.

    """
    sizes = windows[:, 2].astype(np.int64) * windows[:, 3]
    ends = np.cumsum(sizes)
    bad = (windows < 0).any() or (windows[:, :2] + windows[:, 2:] > grid).any()
    if bad or (len(ends) and int(ends[-1]) != flat.size):
        raise AutolabelError("the server's masks do not fit their windows: it runs another version")
    found = [
        flat[end - size : end].reshape(height, width)
        for end, size, (_, _, height, width) in zip(ends, sizes, windows, strict=True)
    ]
    return LowResMasks(found, windows[:, :2].astype(np.int32), (grid, grid), *scores)
