"""Sizes that are usual for a class: at a place in the picture, near things are large."""

from __future__ import annotations

import numpy as np

from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers

ENOUGH = 30  # instances of a class that say what is usual


def unusual_sizes(classes: IntArray, log_area: Numbers, lower: Numbers) -> Numbers:
    """How unusual N boxes are for their classes: 0 usual, 1 at six spreads: float64 (N,).

    Args:
        classes: numbers of the classes.
        log_area: logarithms of the boxes' areas.
        lower: the boxes' lower edges as shares of the image's height.

    """
    result = np.zeros(len(classes))
    for one in np.flatnonzero(np.bincount(classes) >= ENOUGH) if len(classes) else ():
        chosen = classes == one
        slope, offset, spread = _fit(lower[chosen], log_area[chosen])
        away = np.abs(log_area[chosen] - slope * lower[chosen] - offset) / spread
        result[chosen] = ((away - 2) / 4).clip(0, 1)
    return result


def _fit(lower: Numbers, area: Numbers) -> tuple[float, float, float]:
    """Fit a line through log areas over lower edges: its slope, offset, and the robust spread."""
    slope = 0.0
    if lower.std() > 1e-3:
        slope = float(((lower - lower.mean()) * (area - area.mean())).mean() / lower.var())
    offset = float(np.median(area - slope * lower))
    spread = 1.4826 * float(np.median(np.abs(area - slope * lower - offset)))
    return slope, offset, max(spread, 0.15)
