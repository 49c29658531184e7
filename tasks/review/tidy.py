"""A mask of clicks without what nobody meant: crumbs, pinholes, what is outside a dragged box.

What somebody has clicked on stays, however small it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.masks.crops import BoolArray
from tasks.masks.parts import without_small_parts

# Parts and holes under this share of the largest part are crumbs and pinholes.
CRUMB_SHARE = 0.02
AROUND_CLICK_PX = 2


def tidied(
    mask: BoolArray,
    corner_xy_px: tuple[int, int],
    points: Sequence[tuple[float, float, bool]],
    box_xyxy_px: tuple[float, float, float, float] | None,
) -> BoolArray:
    """Return a mask without crumbs, pinholes and what is outside a dragged box.

    Args:
        mask: bool (height, width), cut out of the picture.
        corner_xy_px: where its first pixel is in the picture.
        points: x, y in pixels of the picture, and whether the object is there.
        box_xyxy_px: dragged; it grows until it holds the clicks on the object.

    """
    left, top = corner_xy_px
    on, off = np.zeros(mask.shape, np.bool_), np.zeros(mask.shape, np.bool_)
    for x, y, yes in points:
        row, column = int(y) - top + AROUND_CLICK_PX, int(x) - left + AROUND_CLICK_PX
        near = slice(max(row - 2 * AROUND_CLICK_PX, 0), max(row + 1, 0))
        (on if yes else off)[near, max(column - 2 * AROUND_CLICK_PX, 0) : max(column + 1, 0)] = True
    kept = mask.copy()
    if box_xyxy_px is not None:
        kept &= _within(mask.shape, corner_xy_px, points, box_xyxy_px)
    kept = without_small_parts(kept, on, share=CRUMB_SHARE)
    framed = np.pad(~kept, 1, constant_values=True)  # what is outside of all is no hole
    clicks = np.pad(off, 1)
    clicks[0, 0] = True
    return ~without_small_parts(framed, clicks, int(CRUMB_SHARE * kept.sum()))[1:-1, 1:-1]


def _within(
    shape: tuple[int, ...],
    corner_xy_px: tuple[int, int],
    points: Sequence[tuple[float, float, bool]],
    box_xyxy_px: tuple[float, float, float, float],
) -> BoolArray:
    """Return the box, grown until it holds the clicks on the object."""
    on = np.array([point[:2] for point in points if point[2]], np.float64).reshape(-1, 2)
    low = np.vstack([[box_xyxy_px[:2]], on - AROUND_CLICK_PX]).min(0) - corner_xy_px
    high = np.vstack([[box_xyxy_px[2:]], on + AROUND_CLICK_PX]).max(0) - corner_xy_px
    (x0, y0), (x1, y1) = np.floor(low).clip(0).astype(int), np.ceil(high).clip(0).astype(int)
    inside = np.zeros(shape, np.bool_)
    inside[y0:y1, x0:x1] = True
    return inside
