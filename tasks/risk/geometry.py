"""Boxes and masks against each other: overlaps, best pairs, connected pieces; many at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rlemasklib import RLEMask

from sam2_core.types import IntArray

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
        first_row, second_row = int(first[at]), int(second[at])
        if first_row not in pairs and second_row not in taken:
            pairs[first_row] = second_row
            taken.add(second_row)
    return pairs


def share_outside_largest_piece(masks: Sequence[RLEMask]) -> Numbers:
    """Share of each mask outside its largest connected piece (4-connected): float64 (N,)."""
    found = (mask.connected_component_stats() for mask in masks)
    return np.array([1 - areas[0].max() / areas[0].sum() if areas else 0.0 for areas in found])
