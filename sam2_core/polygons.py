"""Outlines of masks as polygons that rasterise to the masks again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bitmap = npt.NDArray[np.uint8]
Points = npt.NDArray[np.float64]


def polygons(mask: Bitmap) -> list[Points]:
    """Outlines of a mask, one closed polygon per part, holes joined to their part by a cut.

    A pixel's centre is at +0.5; outlines run a quarter of a pixel inside the pixels' edges, so that
    rasterising by centres gives the mask again.

    Args:
        mask: uint8 (H, W) of 0 and 1.

    Returns:
        float64 (K, 2) x, y in pixels each.

    """
    import cv2

    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return []
    top, left = int(rows[0]), int(columns[0])
    crop = mask[top : rows[-1] + 1, left : columns[-1] + 1]
    doubled = np.pad(crop.repeat(2, 0).repeat(2, 1), 1)
    contours, tree = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    parts: dict[int, list[Points]] = {}
    for number, contour in enumerate(contours):
        points = (contour[:, 0, :].astype(np.float64) - 0.5) / 2 + (left, top)
        around = int(tree[0][number][3])
        parts.setdefault(number if around < 0 else around, []).append(points)
    return [one_polygon(part) for part in parts.values()]


def one_polygon(rings: Sequence[Points]) -> Points:
    """Join rings to the first one by cuts of no width, each at the nearest of its corners.

    A cut is passed there and back, so rasterising by COCO's rules does not see it.
    """
    from scipy.spatial import cKDTree

    first, *others = rings
    if not others:
        return first
    corners = cKDTree(first).query([ring[0] for ring in others])[1]
    pieces, last = [], 0
    for number in corners.argsort(kind="stable"):
        here = int(corners[number])
        pieces += [first[last : here + 1], others[number], others[number][:1]]
        last = here
    return np.concatenate([*pieces, first[last:]])
