"""Boxes and masks against each other: overlaps, best pairs, connected pieces; many at once.

Masks are vertical segments (`tasks.masks.crops.Segments`); no mask is decoded into pixels.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.types import IntArray
from tasks.masks.crops import Segments

Numbers = npt.NDArray[np.floating[Any]]


def box_areas(boxes: Numbers) -> Numbers:
    """Areas of boxes x1 y1 x2 y2: (N,)."""
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def shared_box_areas(first: Numbers, second: Numbers) -> Numbers:
    """Areas that boxes (N, 4) and (M, 4) have in common: (N, M)."""
    a, b = np.ascontiguousarray(first.T)[:, :, None], np.ascontiguousarray(second.T)[:, None]
    width = np.minimum(a[2], b[2])
    width -= np.maximum(a[0], b[0])
    np.maximum(width, 0, out=width)
    height = np.minimum(a[3], b[3])
    height -= np.maximum(a[1], b[1])
    np.maximum(height, 0, out=height)
    width *= height
    return np.asarray(width)


def box_ious(first: Numbers, second: Numbers) -> Numbers:
    """IoU of boxes (N, 4) and (M, 4): (N, M)."""
    shared = shared_box_areas(first, second)
    union = box_areas(first)[:, None] + box_areas(second)[None]
    union -= shared
    return np.asarray(shared / np.maximum(union, 1e-9, out=union))


def box_iou_rows(first: Numbers, second: Numbers) -> Numbers:
    """IoU of box i of the one with box i of the other: (N,)."""
    shared = np.minimum(first[:, 2:], second[:, 2:]) - np.maximum(first[:, :2], second[:, :2])
    inner = shared.clip(0).prod(axis=1)
    return np.asarray(inner / (box_areas(first) + box_areas(second) - inner).clip(1e-9))


def best_pairs(fits: Numbers, first: IntArray, second: IntArray) -> dict[int, int]:
    """Pair rows of two lists one to one, the best fits first; of equal fits the lowest rows.

    Args:
        fits: float (P,), how well row `first[i]` of one list fits row `second[i]` of the other.
        first: int64 (P,).
        second: int64 (P,).

    Returns:
        {row of the one: row of the other}, the best fits first.

    """
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for at in np.lexsort((second, first, -fits)).tolist():
        one, other = int(first[at]), int(second[at])
        if one not in pairs and other not in taken:
            pairs[one] = other
            taken.add(other)
    return pairs


def share_outside_largest_piece(segments: Segments) -> Numbers:
    """Share of each mask outside its largest connected piece (4-connected): float64 (N,)."""
    total = len(segments.mask)
    result = np.zeros(segments.count)
    if not total:
        return result
    # All masks' columns lie on one line, one after another, with room between two of them and two
    # masks, so that nothing touches.
    height = segments.size_hw[0] + 1
    base = (segments.mask * (segments.size_hw[1] + 2) + segments.column) * height
    top, bottom = base + segments.top, base + segments.bottom
    # A segment that touches the next one goes on its chain; most masks are a few chains.
    goes_on = (top[1:] < bottom[:-1] + height) & (top[:-1] + height < bottom[1:])
    first = np.concatenate([[0], np.flatnonzero(~goes_on) + 1])
    owner = segments.mask[first]
    if (np.diff(owner) > 0).all():
        return result
    chain_area = np.add.reduceat(bottom - top, first)
    piece = _pieces(top, bottom, first, height)
    piece_area = np.bincount(piece, chain_area)[piece]
    largest, area = np.zeros(segments.count), np.bincount(owner, chain_area, segments.count)
    np.maximum.at(largest, owner, piece_area)
    return np.where(largest > 0, 1 - largest / area.clip(1), 0)


def _pieces(top: IntArray, bottom: IntArray, first: IntArray, height: int) -> IntArray:
    """Return the number of the connected piece that each chain of segments is in: (len(first),)."""
    # Neighbours are segments that overlap in the next column. Only where one of the two columns has
    # several segments can they be of different chains.
    column = top // height
    shared = np.concatenate([[False], column[1:] == column[:-1], [False]])
    several = shared[:-1] | shared[1:]
    near = np.flatnonzero(several | np.append(several[1:], False))
    begin = np.searchsorted(bottom, top[near] + height, "right")
    reach = (np.searchsorted(top, bottom[near] + height, "left") - begin).clip(0)
    target = np.repeat(begin - (np.cumsum(reach) - reach), reach) + np.arange(reach.sum())
    chain = np.zeros(len(top), np.int64)
    chain[first[1:]] = 1
    chain = np.cumsum(chain)
    source, target = np.repeat(chain[near], reach), chain[target]
    # Not by SciPy, whose import takes longer than a sequence: the least number wins on each link.
    piece = np.arange(len(first))
    while (piece[source] != piece[target]).any():
        np.minimum.at(piece, source, piece[target])
        np.minimum.at(piece, target, piece[source])
        piece = piece[piece]
    return piece
