"""What is measured on every instance to judge it: one row of numbers an instance.

Everything comes from boxes, scores and run lengths; images are not looked at. All instances of a
frame are measured at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.types import Boxes, IntArray, Masks
from tasks.load_masks import Segments, segments_of
from tasks.tables import LabeledFrame

Numbers = npt.NDArray[np.floating[Any]]

# The order of the columns. A feature is 0 for a label that gives no cause for doubt and grows.
FEATURES = (
    "low_predicted_iou", "unstable", "low_object_score", "low_score", "empty", "spill", "underfill",
    "overfill", "fragmented", "ragged", "box_mismatch", "overlap", "duplicate", "tiny", "truncated",
    "flicker", "lonely", "class_change", "unusual_size", "shape_change",
)  # fmt: skip
COLUMN = {name: index for index, name in enumerate(FEATURES)}
MATCH_IOU = 0.3
TINY_SIDE_PX = 24.0
BORDER_PX = 2.0


@dataclass(frozen=True, eq=False)
class Measured:
    """A frame's boxes and masks in numbers.

    Attributes:
        boxes_px: float64 (N, 4), zeros where invalid.
        area_px: float64 (N,) of the masks.
        fill: float64 (N,), share of the box that its mask covers.
        log_area: float64 (N,), of the boxes.
        labels, tracks: class names and track ids (-1: none).

    """

    boxes_px: Numbers
    area_px: Numbers
    fill: Numbers
    log_area: Numbers
    labels: tuple[str, ...]
    tracks: IntArray

    @staticmethod
    def of(boxes: Boxes, masks: Masks) -> Measured:
        """Measure what needs no mask pixels."""
        px = np.array(boxes.xyxy_px, np.float64)
        px[~np.isfinite(px).all(axis=1)] = 0
        px[(px[:, 2] < px[:, 0]) | (px[:, 3] < px[:, 1])] = 0
        area = masks.area_px.astype(np.float64)
        extent = (px[:, 2] - px[:, 0]) * (px[:, 3] - px[:, 1])
        tracks = boxes.track_ids if boxes.track_ids is not None else np.full(len(boxes), -1)
        return Measured(
            px, area, area / extent.clip(1), np.log(extent.clip(1)), boxes.labels, tracks
        )


def features_of(
    frame: LabeledFrame,
    before: LabeledFrame | None = None,
    after: LabeledFrame | None = None,
    typical: TypicalSizes | None = None,
) -> Numbers:
    """Measure the N instances of a frame: float32 (N, len(FEATURES)).

    Args:
        frame: the frame.
        before: the frame before it of the same camera, if there is one with labels.
        after: the one after it.
        typical: sizes that are usual for a class.

    """
    boxes, masks = frame.boxes, frame.masks
    values = np.zeros((len(boxes), len(FEATURES)))
    if masks is None or not len(boxes):
        return values.astype(np.float32)
    measured = Measured.of(boxes, masks)
    values[:, COLUMN["low_predicted_iou"]] = 1 - masks.predicted_iou
    values[:, COLUMN["unstable"]] = 1 - masks.stability
    values[:, COLUMN["low_object_score"]] = 1 / (1 + np.exp(masks.object_score.clip(-30, 30)))
    values[:, COLUMN["low_score"]] = 1 - boxes.scores
    values[:, COLUMN["empty"]] = measured.area_px == 0
    segments = segments_of(masks.rle, masks.size_hw)
    _shape(values, measured, segments)
    _frame_place(values, measured, masks.size_hw)
    _overlaps(values, measured, segments)
    _neighbours(values, measured, [_measure(before), _measure(after)])
    if typical is not None:
        values[:, COLUMN["unusual_size"]] = typical.surprise(measured)
    return np.nan_to_num(values, posinf=1, neginf=0).astype(np.float32)


def _measure(frame: LabeledFrame | None) -> Measured | None:
    return Measured.of(frame.boxes, frame.masks) if frame and frame.masks is not None else None


def _shape(values: Numbers, measured: Measured, segments: Segments) -> None:
    """Compare mask with box: outside it, too little or too much of it, in pieces, ragged."""
    of, count = segments.mask, segments.count
    boxes = measured.boxes_px
    width = np.minimum(segments.column + 1, boxes[of, 2]) - np.maximum(
        segments.column, boxes[of, 0]
    )
    height = np.minimum(segments.bottom, boxes[of, 3]) - np.maximum(segments.top, boxes[of, 1])
    inside = np.bincount(of, width.clip(0, 1) * height.clip(0), minlength=count)
    area = measured.area_px.clip(1)
    some = measured.area_px > 0
    values[:, COLUMN["spill"]] = np.where(some, 1 - inside / area, 0)
    extent = np.exp(measured.log_area)
    values[:, COLUMN["underfill"]] = np.where(some, (0.5 - inside / extent).clip(0), 0)
    values[:, COLUMN["overfill"]] = (inside / extent - 0.85).clip(0)
    bounds = segments.bounds_xyxy_px()
    values[:, COLUMN["box_mismatch"]] = np.where(some, 1 - _iou_rows(bounds, boxes), 0)
    # Upright objects give one segment a column. More of them mean pieces, holes or a torn edge.
    columns = (bounds[:, 2] - bounds[:, 0]).clip(1)
    pieces = np.bincount(of, minlength=count)
    values[:, COLUMN["ragged"]] = np.where(some, (pieces / columns - 1.5).clip(0, 10) / 10, 0)
    values[:, COLUMN["fragmented"]] = _fragmented(segments, area)


def _fragmented(segments: Segments, area: Numbers) -> Numbers:
    """Share of each mask outside its largest connected piece: float64 (N,).

    Pieces are found on the segments: two are neighbours when they overlap in adjacent columns.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    total = len(segments.mask)
    if not total:
        return np.zeros(segments.count)
    height = np.int64(segments.size_hw[0] + 1)
    stride = height * (segments.size_hw[1] + 2)
    base = segments.mask * stride + segments.column * height
    top, bottom = base + segments.top, base + segments.bottom
    first = np.searchsorted(bottom, top + height, "right")
    last = np.searchsorted(top, bottom + height, "left")
    reach = (last - first).clip(0)
    source = np.repeat(np.arange(total), reach)
    target = np.repeat(first - (np.cumsum(reach) - reach), reach) + np.arange(reach.sum())
    graph = coo_array((np.ones(len(source), bool), (source, target)), (total, total))
    pieces, piece = connected_components(graph, directed=False)
    size = np.bincount(piece, segments.bottom - segments.top, minlength=pieces)
    largest = np.zeros(segments.count)
    np.maximum.at(largest, segments.mask, size[piece])
    return np.where(largest > 0, 1 - largest / area, 0)


def _frame_place(values: Numbers, measured: Measured, size_hw: tuple[int, int]) -> None:
    boxes = measured.boxes_px
    sides = np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
    values[:, COLUMN["tiny"]] = (1 - sides / TINY_SIDE_PX).clip(0)
    far = np.array([size_hw[1], size_hw[0]]) - BORDER_PX
    touching = (boxes[:, :2] <= BORDER_PX).any(axis=1) | (boxes[:, 2:] >= far).any(axis=1)
    values[:, COLUMN["truncated"]] = touching


def _overlaps(values: Numbers, measured: Measured, segments: Segments) -> None:
    """Find masks that share pixels with another, and boxes that are another's twin."""
    count = segments.count
    if count < 2:
        return
    iou = _iou_matrix(measured.boxes_px, measured.boxes_px)
    np.fill_diagonal(iou, 0)
    same = np.array([[a == b for b in measured.labels] for a in measured.labels])
    values[:, COLUMN["duplicate"]] = (np.where(same, iou, iou * 0.8).max(axis=1) - 0.5).clip(0) * 2
    close = np.argwhere(np.triu(_covered_matrix(measured.boxes_px) > 0.3))
    if not len(close):
        return
    shared = _shared_pixels(segments, close)
    smaller = np.minimum(measured.area_px[close[:, 0]], measured.area_px[close[:, 1]]).clip(1)
    for side in (0, 1):
        np.maximum.at(values[:, COLUMN["overlap"]], close[:, side], shared / smaller)


def _shared_pixels(segments: Segments, pairs: IntArray) -> Numbers:
    """Count the pixels that both masks of each pair have: float64 (P,)."""
    start = np.searchsorted(segments.mask, np.arange(segments.count + 1))
    height = segments.size_hw[0]
    top = segments.column * height + segments.top
    bottom = segments.column * height + segments.bottom
    shared = np.zeros(len(pairs))
    for row, (a, b) in enumerate(pairs.tolist()):
        one, two = slice(start[a], start[a + 1]), slice(start[b], start[b + 1])
        if one.start == one.stop or two.start == two.stop:
            continue
        edges_a = np.stack([top[one], bottom[one]], 1).ravel()
        edges_b = np.stack([top[two], bottom[two]], 1).ravel()
        # Pixels of b before each edge of a: its covered length, interpolated along b's edges.
        covered = np.zeros(len(edges_b))
        covered[1:] = np.cumsum(np.where(np.arange(len(edges_b) - 1) % 2 == 0, np.diff(edges_b), 0))
        before = np.interp(edges_a, edges_b, covered)
        shared[row] = (before[1::2] - before[::2]).sum()
    return shared


def _neighbours(values: Numbers, measured: Measured, others: Sequence[Measured | None]) -> None:
    """Compare with the same object in the frames beside: gone, another class, another shape."""
    found = np.zeros(len(measured.labels), np.int64)
    present = [other for other in others if other is not None]
    for other in present:
        match = _match(measured, other)
        has = np.flatnonzero(match >= 0)
        found[has] += 1
        to = match[has]
        # How much of its box an object fills hardly changes from frame to frame.
        change = np.abs(measured.fill[has] - other.fill[to])
        column = values[:, COLUMN["flicker"]]
        column[has] = np.maximum(column[has], change)
        moved = np.abs(measured.log_area[has] - other.log_area[to])
        column = values[:, COLUMN["shape_change"]]
        column[has] = np.maximum(column[has], moved.clip(0, 2) / 2)
        other_class = [measured.labels[i] != other.labels[j] for i, j in zip(has, to, strict=True)]
        column = values[:, COLUMN["class_change"]]
        column[has] = np.maximum(column[has], np.array(other_class, np.float64))
    if present:
        values[:, COLUMN["lonely"]] = (found == 0) & (values[:, COLUMN["truncated"]] == 0)


def _match(measured: Measured, other: Measured) -> IntArray:
    """Index of the same object in another frame, -1 where there is none: int64 (N,)."""
    if not len(other.labels):
        return np.full(len(measured.labels), -1)
    iou = _iou_matrix(measured.boxes_px, other.boxes_px)
    known = measured.tracks >= 0
    same = (measured.tracks[:, None] == other.tracks[None, :]) & known[:, None]
    score = np.where(same, 2, iou)
    best = score.argmax(axis=1)
    return np.where(score.max(axis=1) >= MATCH_IOU, best, -1)


@dataclass(frozen=True)
class TypicalSizes:
    """Sizes that are usual for a class: at a place in the picture, near things are large.

    Attributes:
        fits: class -> (slope, offset, spread) of log box area over the box's lower edge.

    """

    fits: dict[str, tuple[float, float, float]]

    @staticmethod
    def of(frames: Sequence[LabeledFrame], at_least: int = 30) -> TypicalSizes:
        """Learn them from the frames at hand, for classes with enough instances."""
        rows: dict[str, list[tuple[float, float]]] = {}
        for frame in frames:
            if frame.masks is None:
                continue
            measured = Measured.of(frame.boxes, frame.masks)
            height = max(frame.masks.size_hw[0], 1)
            for label, area, lower in zip(
                measured.labels, measured.log_area, measured.boxes_px[:, 3] / height, strict=True
            ):
                rows.setdefault(label, []).append((lower, area))
        return TypicalSizes({k: _fit(np.array(v)) for k, v in rows.items() if len(v) >= at_least})

    def surprise(self, measured: Measured) -> Numbers:
        """How unusual each box is for its class: 0 usual, 1 at six spreads: float64 (N,)."""
        result = np.zeros(len(measured.labels))
        lower = measured.boxes_px[:, 3] / max(measured.boxes_px[:, 3].max(initial=1), 1)
        for row, label in enumerate(measured.labels):
            if label in self.fits:
                slope, offset, spread = self.fits[label]
                away = abs(measured.log_area[row] - slope * lower[row] - offset) / spread
                result[row] = min(max(away - 2, 0) / 4, 1)
        return result


def _fit(rows: Numbers) -> tuple[float, float, float]:
    lower, area = rows.T
    slope = 0.0
    if lower.std() > 1e-3:
        slope = float(((lower - lower.mean()) * (area - area.mean())).mean() / lower.var())
    offset = float(np.median(area - slope * lower))
    spread = 1.4826 * float(np.median(np.abs(area - slope * lower - offset)))
    return slope, offset, max(spread, 0.15)


def _iou_matrix(first: Numbers, second: Numbers) -> Numbers:
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clip(0).prod(axis=2)
    area_a, area_b = ((b[:, 2:] - b[:, :2]).prod(axis=1) for b in (first, second))
    return np.asarray(shared / (area_a[:, None] + area_b[None, :] - shared).clip(1e-9))


def _covered_matrix(boxes: Numbers) -> Numbers:
    """Share of the smaller box that the other covers: (N, N), 0 on the diagonal."""
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    share = (high - low).clip(0).prod(axis=2) / np.minimum(area[:, None], area).clip(1)
    np.fill_diagonal(share, 0)
    return np.asarray(share)


def _iou_rows(first: Numbers | IntArray, second: Numbers) -> Numbers:
    shared = np.minimum(first[:, 2:], second[:, 2:]) - np.maximum(first[:, :2], second[:, :2])
    inner = shared.clip(0).prod(axis=1)
    area_a, area_b = ((b[:, 2:] - b[:, :2]).prod(axis=1) for b in (first, second))
    return np.asarray(inner / (area_a + area_b - inner).clip(1e-9))
