"""Something moves while the shutter is open: a camera that follows it, or one that does not.

Masks stay where the object is in the middle of that time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.canvas import Canvas
from lab.scenes.lens import streak

Array = npt.NDArray[np.float32]


def followed(canvas: Canvas, owners: Collection[int], length_px: float) -> None:
    """Streak all but some owners' pixels sideways, as a camera does that follows them."""
    mask, kernel = _mask(canvas, owners), streak(length_px, 0.0)
    canvas.rgb[:] = _put(_spread(canvas, 1 - mask, kernel), canvas.rgb, mask)


def passing(canvas: Canvas, owners: Collection[int], length_px: float) -> None:
    """Streak some owners' pixels sideways over what stands still behind them."""
    mask, kernel = _mask(canvas, owners), streak(length_px, 0.0)
    if not mask.any():
        return
    still = _put(_spread(canvas, 1 - mask, kernel), canvas.rgb, 1 - mask)
    share = cv2.filter2D(mask, -1, kernel)
    canvas.rgb[:] = _put(still, _spread(canvas, mask, kernel), share)


def _mask(canvas: Canvas, owners: Collection[int]) -> Array:
    return np.isin(canvas.owner, list(owners)).astype(np.float32)


def _spread(canvas: Canvas, weight: Array, kernel: npt.NDArray[np.floating]) -> Array:
    """Streak the colours of weighted pixels alone, so that no other colour bleeds into them."""
    colours = cv2.filter2D(canvas.rgb.astype(np.float32) * weight[..., None], -1, kernel)
    total = cv2.filter2D(weight, -1, kernel)[..., None]
    found: Array = np.where(total > 1e-3, colours / np.maximum(total, 1e-3), canvas.rgb)
    return found


def _put(below: npt.NDArray[Any], above: npt.NDArray[Any], share: Array) -> Array:
    part = share[..., None]
    found: Array = np.clip(below * (1 - part) + above * part, 0, 255)
    return found
