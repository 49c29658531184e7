"""Boxes and masks against each other: overlaps, shared pixels, connected pieces; many at once.

Masks are vertical segments (`tasks.masks.crops.Segments`); no mask is decoded into pixels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.types import IntArray
from tasks.masks.crops import Segments

Numbers = npt.NDArray[np.floating[Any]]
SEGMENTS_AT_ONCE = 1 << 14  # what is looked up of so many stays in the cache
FEW_IN_COLUMN = 16  # segments that are faster compared one by one than looked up


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


def shared_pixels(segments: Segments, pairs: IntArray) -> Numbers:
    """Count the pixels that both masks of each pair (P, 2) have: float64 (P,)."""
    shared = np.zeros(len(pairs))
    if not len(segments.mask):
        return shared
    # Of each pair, the segments of the mask with fewer of them are looked up in the other.
    swap = np.bincount(segments.mask, minlength=segments.count)[pairs]
    few = np.where(swap[:, 0] <= swap[:, 1], pairs[:, 0], pairs[:, 1])
    many = pairs.sum(axis=1) - few
    columns = _Columns(segments)
    first, length = columns.in_both(few, many)
    shift = many - few
    # All boxes of a frame may overlap: pairs grow with their square, and each has many segments.
    for part in _blocks(np.cumsum(length)):
        pair = np.repeat(np.arange(part.stop - part.start), length[part])
        before = np.cumsum(length[part]) - length[part]
        chosen = np.arange(len(pair)) + (first[part] - before)[pair]
        pixels = columns.shared(chosen, many[part][pair], shift[part][pair])
        shared[part] = np.bincount(pair, pixels, minlength=part.stop - part.start)
    return shared


def _blocks(end: IntArray) -> Iterator[slice]:
    """Cut pairs, whose segments end at these places of all of them, into blocks."""
    edges = np.flatnonzero(np.diff(end // SEGMENTS_AT_ONCE)) + 1
    for start, stop in itertools.pairwise([0, *edges.tolist(), len(end)]):
        if start < stop:
            yield slice(start, stop)


class _Columns:
    """The segments of masks by column: found once, looked up for many pairs of masks."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        bounds = segments.bounds_xyxy_px()
        self._left, self._right = np.ascontiguousarray(bounds[:, [0, 2]].T)
        width = self._right - self._left
        # The columns of all masks, each from its first to its last, one mask after another.
        self._base = np.cumsum(width) - width - self._left
        place = self._base[segments.mask] + segments.column
        self._first = np.append(0, np.cumsum(np.bincount(place, minlength=int(width.sum()))))

    def in_both(self, mask: IntArray, other: IntArray) -> tuple[IntArray, IntArray]:
        """Find the segments of masks between the edges of others: the first one, and how many."""
        left, right, base = self._left, self._right, self._base[mask]
        low = np.maximum(left[mask], left[other]).clip(max=right[mask])
        high = np.minimum(right[mask], right[other]).clip(min=low)
        first = self._first[base + low]
        return first, self._first[base + high] - first

    def shared(self, chosen: IntArray, other: IntArray, shift: IntArray) -> Numbers:
        """Count the pixels that segments of masks have in common with other masks: (S,)."""
        segments = self._segments
        place = self._base[other] + segments.column[chosen]
        first = self._first[place]
        count = self._first[place + 1] - first
        shared = np.zeros(len(chosen))
        rows, number = np.flatnonzero((count > 0) & (count <= FEW_IN_COLUMN)), 0
        while len(rows):
            here, there = chosen[rows], first[rows] + number
            low = np.maximum(segments.top[here], segments.top[there])
            high = np.minimum(segments.bottom[here], segments.bottom[there])
            shared[rows] += (high - low).clip(0)
            number += 1
            rows = rows[count[rows] > number]
        rest = np.flatnonzero(count > FEW_IN_COLUMN)
        if len(rest):
            shared[rest] = self._shared_with_all(chosen[rest], shift[rest])
        return shared

    def _shared_with_all(self, chosen: IntArray, shift: IntArray) -> IntArray:
        """Count the pixels that segments share with the masks that come `shift` masks later."""
        top, bottom, stride, covered = self._line
        # The same place in the picture, in the other mask.
        inside = _covered_before(bottom[chosen] + shift * stride, top, covered)
        return inside - _covered_before(top[chosen] + shift * stride, top, covered)

    @cached_property
    def _line(self) -> tuple[IntArray, IntArray, int, IntArray]:
        top, bottom, stride = _places(self._segments)
        return top, bottom, stride, np.concatenate([[0], np.cumsum(bottom - top)])


def _places(segments: Segments) -> tuple[IntArray, IntArray, int]:
    """Where segments begin and end on one line that all masks' columns lie on, one after another.

    Between two columns and two masks there is room, so that nothing touches; the third value is the
    distance between the same pixel of two masks that follow each other.
    """
    height = segments.size_hw[0] + 1
    stride = height * (segments.size_hw[1] + 2)
    base = segments.mask * stride + segments.column * height
    return base + segments.top, base + segments.bottom, stride


def _covered_before(place: IntArray, top: IntArray, covered: IntArray) -> IntArray:
    """Foreground pixels of all masks before places on their line."""
    last = np.searchsorted(top, place, "right") - 1
    length = np.diff(covered)
    inside = np.minimum(place - top[last], length[last])
    return np.asarray(np.where(last >= 0, covered[last] + inside, 0))


def share_outside_largest_piece(segments: Segments) -> Numbers:
    """Share of each mask outside its largest connected piece (4-connected): float64 (N,)."""
    total = len(segments.mask)
    result = np.zeros(segments.count)
    if not total:
        return result
    top, bottom, _ = _places(segments)
    height = segments.size_hw[0] + 1
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
    linked = source != target
    return _components(source[linked], target[linked], len(first))


def _components(source: IntArray, target: IntArray, count: int) -> IntArray:
    """Return the least node of each node's connected component: (count,).

    Trees are hooked onto each other and flattened in turns (Shiloach and Vishkin, 1982).
    """
    label = np.arange(count)
    while len(source):
        one, other = label[source], label[target]
        apart = one != other
        source, target, one, other = (part[apart] for part in (source, target, one, other))
        low = np.minimum(one, other)
        np.minimum.at(label, np.maximum(one, other), low)
        while (label[label] != label).any():
            label = label[label]
    return label
