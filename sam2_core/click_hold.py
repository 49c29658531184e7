"""A click that the model did not follow is held all the same, as far as its surroundings are alike.

A model that was trained with few clicks, as the bundled one, often leaves its mask as it was. Then
the logits are changed around those clicks: by a field that has the needed value at the click, is
zero at the clicks that were followed, and spreads from cell to cell the better the more alike their
colours are and the less the model sees an edge between them (random walks with a prior, as in
Grady, PAMI 2006). Where no click is missed nothing changes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sam2_core.types import FloatArray, ImageArray

# Side of the grid on which the field is computed.
SIDE = 64
# How much a cell keeps to what the model said, beside 1 for each neighbour that is just alike.
_PRIOR = 0.02
# Differences of colour (CIE Lab) and of logits at which neighbours have little in common.
_COLOUR, _EDGE = 20.0, 0.25
# Logits are clipped at the typical one, which is 1 here; a click wants this much on its side.
_WANTED = 0.12
_LEAST_WEIGHT, _PINNED = 1e-3, 1e3
# Of the distance to where the mask changes; colours (CIE Lab) that count as the click's.
_REACH, _ALIKE = 0.8, 20.0
_FOUR = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
Grid = npt.NDArray[np.float64]


def hold_clicks(
    logits: FloatArray,
    region: ImageArray,
    clicks_rel: npt.NDArray[np.float64],
    positive: npt.NDArray[np.bool_],
) -> FloatArray:
    """Return logits that have every click on its side of 0.

    Args:
        logits: float32 (h, w), the mask's over a region of the image.
        region: uint8 (H, W, 3) RGB, the pixels of that region.
        clicks_rel: (K, 2) x, y as shares of the region.
        positive: bool (K,).

    Returns:
        The same array where every click is followed; else float32 (h, w) in another unit, which
        matters to nothing but its sign.

    """
    import cv2

    size = (SIDE, SIDE)
    typical = float(np.median(np.abs(logits))) or 1.0
    prior = cv2.resize(logits / typical, size, interpolation=cv2.INTER_LINEAR).clip(-1, 1)
    # A pixel is a mean of the four cells around it: all of them are to be on the click's side.
    corner = np.floor(clicks_rel * SIDE - 0.5).astype(np.int64)[:, None] + _FOUR
    corner = corner.clip(0, SIDE - 1)
    at = corner[..., 1] * SIDE + corner[..., 0]
    sign = np.where(positive, 1.0, -1.0)
    missed = (prior.ravel()[at] * sign[:, None]).min(1) < 0
    if not missed.any() or not np.isfinite(prior).all():
        return logits
    seen = cv2.resize(region, size, interpolation=cv2.INTER_AREA)
    colours = cv2.cvtColor(seen, cv2.COLOR_RGB2LAB).astype(np.float64)
    flat = prior.ravel()
    pinned, needed = np.zeros(flat.shape, np.bool_), np.zeros(flat.shape)
    for click in np.flatnonzero(missed):
        alike = _around(prior * sign[click], colours, clicks_rel[click] * SIDE)
        pinned |= alike
        needed[alike] = sign[click] * (_WANTED - flat[alike] * sign[click]).clip(0)
    for click in np.arange(len(at)):  # the clicks themselves come last: no other one outvotes them
        pinned[at[click]] = True
        lacking = (_WANTED - flat[at[click]] * sign[click]).clip(0)
        needed[at[click]] = sign[click] * lacking * missed[click]
    field = _spread(prior.astype(np.float64), colours, pinned, needed)
    height, width = logits.shape
    change = cv2.resize(field.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    scaled = logits / np.float32(typical)
    held = np.where(np.abs(change) > 1e-3, scaled.clip(-1, 1) + change, scaled)
    return np.asarray(held, np.float32)


def _around(agreeing: Grid, colours: Grid, click: Grid) -> npt.NDArray[np.bool_]:
    """Find what a missed click is also about: bool (SIDE * SIDE,).

    Who clicks far from where the mask changes means a large part. So: the cells nearer than most of
    that distance whose colour is the click's.

    Args:
        agreeing: prior logits, above 0 where the mask is as the click wants it.
        colours: (SIDE, SIDE, 3).
        click: x, y in cells.

    """
    import cv2

    wrong = np.pad((agreeing < 0).astype(np.uint8), 1)  # the region's border is a change, too
    x, y = (int(one) for one in click.clip(0, SIDE - 1))
    reach = float(cv2.distanceTransform(wrong, cv2.DIST_L2, 3)[y + 1, x + 1]) * _REACH
    rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
    near = np.hypot(columns - click[0], rows - click[1]) <= reach
    alike = near & (np.linalg.norm(colours - colours[y, x], axis=-1) < _ALIKE) & (agreeing < 0)
    _, parts = cv2.connectedComponents(alike.astype(np.uint8), connectivity=4)
    return np.asarray((alike & (parts == parts[y, x])).reshape(-1), np.bool_)


def _spread(prior: Grid, colours: Grid, pinned: npt.NDArray[np.bool_], needed: Grid) -> Grid:
    """Solve for the field, (SIDE, SIDE): a weighted mean of each cell's neighbours and the pins."""
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import spsolve

    cells = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    before = np.concatenate([cells[:, :-1].ravel(), cells[:-1].ravel()])
    behind = np.concatenate([cells[:, 1:].ravel(), cells[1:].ravel()])
    weights = np.concatenate([_likeness(prior, colours, axis).ravel() for axis in (1, 0)])
    one_way = coo_array((weights, (before, behind)), shape=(cells.size, cells.size))
    links = (one_way + one_way.T).tocsc()
    diagonal = links.sum(0) + _PRIOR + _PINNED * pinned
    field = spsolve(diags_array(diagonal, format="csc") - links, _PINNED * needed)
    return np.asarray(field, np.float64).reshape(SIDE, SIDE)


def _likeness(prior: Grid, colours: Grid, axis: int) -> Grid:
    """Weigh each pair of neighbours along an axis."""
    apart = np.linalg.norm(np.diff(colours, axis=axis), axis=-1) / _COLOUR
    apart += np.abs(np.diff(prior, axis=axis)) / _EDGE
    likeness: Grid = np.exp(-apart) + _LEAST_WEIGHT
    return likeness
