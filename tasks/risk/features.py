"""What is measured on every instance to judge it: one row of numbers per instance.

Everything comes from boxes, scores and run lengths; images are not looked at. The instances of many
frames are measured at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import IntArray
from tasks.masks.crops import MASKS_AT_ONCE, BoolArray, Segments, segments_of
from tasks.risk.geometry import (
    Numbers,
    box_areas,
    box_iou_rows,
    box_ious,
    share_outside_largest_piece,
    shared_box_areas,
    shared_pixels,
)
from tasks.store.tables import LabeledFrame


@dataclass(frozen=True, eq=False)
class Measured:
    """The boxes and masks of F frames in numbers, one frame after another; N instances in all.

    Attributes:
        starts: int64 (F + 1,), where each frame's instances begin; the last one is N.
        labeled: bool (F,), whether a frame has masks at all.
        boxes_px: float64 (N, 4), zeros where invalid.
        size_hw_px: float64 (N, 2), of the image.
        area_px: float64 (N,) of the masks.
        fill: float64 (N,), share of the box that its mask covers.
        log_area: float64 (N,), of the boxes.
        classes, tracks: int64 (N,), numbers of the class names and track ids (-1: none).

    """

    starts: IntArray
    labeled: BoolArray
    boxes_px: Numbers
    size_hw_px: Numbers
    area_px: Numbers
    fill: Numbers
    log_area: Numbers
    classes: IntArray
    tracks: IntArray

    def __post_init__(self) -> None:
        freeze_arrays(
            self, starts="int64 (edges)", labeled="bool (F)", boxes_px="float64 (N, 4)",
            size_hw_px="float64 (N, 2)", area_px="float64 (N)", fill="float64 (N)",
            log_area="float64 (N)", classes="int64 (N)", tracks="int64 (N)",
        )  # fmt: skip

    @staticmethod
    def of(frames: Sequence[LabeledFrame]) -> Measured:
        """Measure what needs no mask pixels."""
        counts = [0 if one.masks is None else len(one.boxes) for one in frames]
        some = [(one.boxes, one.masks) for one in frames if one.masks is not None]
        px = np.concatenate([np.zeros((0, 4)), *(boxes.xyxy_px for boxes, _ in some)])
        px[~np.isfinite(px).all(axis=1)] = 0
        px[(px[:, 2] < px[:, 0]) | (px[:, 3] < px[:, 1])] = 0
        area = np.concatenate([np.zeros(0), *(masks.area_px for _, masks in some)])
        extent = box_areas(px).clip(1)
        numbers: dict[str, int] = {}
        names = [numbers.setdefault(one, len(numbers)) for boxes, _ in some for one in boxes.labels]
        tracks = [
            np.full(len(boxes), -1) if boxes.track_ids is None else boxes.track_ids
            for boxes, _ in some
        ]
        sizes = np.array([masks.size_hw for _, masks in some], np.float64).reshape(-1, 2)
        return Measured(
            np.cumsum([0, *counts]), np.array([one.masks is not None for one in frames], bool), px,
            np.repeat(sizes, [len(boxes) for boxes, _ in some], axis=0), area, area / extent,
            np.log(extent), np.array(names, np.int64),
            np.concatenate([np.zeros(0, np.int64), *tracks]),
        )  # fmt: skip

    def rows(self, frame: int) -> slice:
        """Rows of a frame's instances."""
        return slice(int(self.starts[frame]), int(self.starts[frame + 1]))


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


def measure_frames(
    frames: Sequence[LabeledFrame],
    before: Sequence[LabeledFrame] = (),
    after: Sequence[LabeledFrame] = (),
) -> list[Numbers]:
    """Measure the instances of successive frames of one camera.

    Args:
        frames: in order.
        before: what comes before them, if anything; the last one counts.
        after: what comes after them; the first one counts.

    Returns:
        float32 (N, len(FEATURES)) a frame.

    """
    around = [*before[-1:], *frames, *after[:1]]
    first = len(before[-1:])
    wanted = range(first, first + len(frames))
    measured = Measured.of(around)
    # Column by column in memory: every feature is written by itself.
    values = np.zeros((len(measured.classes), len(FEATURES)), np.float32, order="F")
    _scores(values, measured, around)
    _frame_place(values, measured)
    _neighbours(values, measured)
    inner = slice(int(measured.starts[wanted.start]), int(measured.starts[wanted.stop]))
    values[inner, COLUMN["unusual_size"]] = unusual_sizes(
        measured.classes[inner], measured.log_area[inner],
        measured.boxes_px[inner, 3] / measured.size_hw_px[inner, 0].clip(1),
    )  # fmt: skip
    for part in _of_one_size(around, wanted):
        _mask_features(values, measured, around, part)
    np.nan_to_num(values, copy=False, posinf=1, neginf=0)
    rows = np.ascontiguousarray(values)
    return [
        rows[measured.rows(i)]
        if measured.labeled[i]
        else np.zeros((len(around[i].boxes), len(FEATURES)), np.float32)
        for i in wanted
    ]


def _of_one_size(frames: Sequence[LabeledFrame], wanted: Sequence[int]) -> list[list[int]]:
    """Frames whose masks can be decoded in one go: of one size, not too many."""
    parts: dict[tuple[tuple[int, int], int], list[int]] = {}
    count = 0
    for i in wanted:
        masks = frames[i].masks
        if masks is not None and len(masks):
            parts.setdefault((masks.size_hw, count // MASKS_AT_ONCE), []).append(i)
            count += len(masks)
    return [*parts.values()]


def _scores(values: Numbers, measured: Measured, frames: Sequence[LabeledFrame]) -> None:
    """Take what detector and model think of their own work."""
    some = [(one.boxes, one.masks) for one in frames if one.masks is not None]
    if not some:
        return
    values[:, COLUMN["low_predicted_iou"]] = 1 - np.concatenate([m.predicted_iou for _, m in some])
    values[:, COLUMN["unstable"]] = 1 - np.concatenate([m.stability for _, m in some])
    logits = np.concatenate([m.object_score for _, m in some]).clip(-30, 30)
    values[:, COLUMN["low_object_score"]] = 1 / (1 + np.exp(logits))
    scores = np.concatenate([boxes.scores for boxes, _ in some])
    values[:, COLUMN["low_score"]] = 1 - scores.clip(0, 1)  # imported ones may be any number
    values[:, COLUMN["empty"]] = measured.area_px == 0


def _mask_features(
    values: Numbers, measured: Measured, frames: Sequence[LabeledFrame], chosen: Sequence[int]
) -> None:
    """Measure the masks of frames of one size."""
    masks = [one for one in (frames[i].masks for i in chosen) if one is not None]
    counts = [len(one) for one in masks]
    segments = segments_of([rle for one in masks for rle in one.rle], masks[0].size_hw)
    rows = np.concatenate([np.arange(*measured.starts[i : i + 2]) for i in chosen])
    _shape(values, measured, segments, rows)
    _overlaps(values, measured, segments, rows, np.cumsum([0, *counts]))


def _shape(values: Numbers, measured: Measured, segments: Segments, rows: IntArray) -> None:
    """Compare mask with box: outside it, too little or too much of it, in pieces, ragged."""
    of, count = segments.mask, segments.count
    boxes = measured.boxes_px[rows]
    left, top, right, bottom = np.ascontiguousarray(boxes.T)
    width = np.minimum(segments.column + 1, right[of]) - np.maximum(segments.column, left[of])
    height = np.minimum(segments.bottom, bottom[of]) - np.maximum(segments.top, top[of])
    inside = np.bincount(of, width.clip(0, 1) * height.clip(0), minlength=count)
    area = measured.area_px[rows]
    some, extent = area > 0, np.exp(measured.log_area[rows])
    bounds = segments.bounds_xyxy_px()
    # Upright objects give one segment a column. More of them mean pieces, holes or a torn edge.
    columns = (bounds[:, 2] - bounds[:, 0]).clip(1)
    pieces = np.bincount(of, minlength=count)
    for name, value in (
        ("spill", 1 - inside / area.clip(1)),
        ("underfill", (0.5 - inside / extent).clip(0)),
        ("overfill", (inside / extent - 0.85).clip(0)),
        ("box_mismatch", 1 - box_iou_rows(bounds.astype(np.float64), boxes)),
        ("ragged", (pieces / columns - 1.5).clip(0, 10) / 10),
        ("fragmented", share_outside_largest_piece(segments)),
    ):
        values[rows, COLUMN[name]] = np.where(some, value, 0)


def _frame_place(values: Numbers, measured: Measured) -> None:
    left, top, right, bottom = measured.boxes_px.T
    height, width = measured.size_hw_px.T
    sides = np.minimum(right - left, bottom - top)
    values[:, COLUMN["tiny"]] = (1 - sides / TINY_SIDE_PX).clip(0)
    near = np.minimum(left, top) <= BORDER_PX
    far = (right >= width - BORDER_PX) | (bottom >= height - BORDER_PX)
    values[:, COLUMN["truncated"]] = near | far


def _overlaps(
    values: Numbers, measured: Measured, segments: Segments, rows: IntArray, starts: IntArray
) -> None:
    """Find masks that share pixels with another, and boxes that are another's twin."""
    boxes = measured.boxes_px[rows]
    pairs: list[IntArray] = [np.zeros((0, 2), np.int64)]
    common: list[Numbers] = [np.zeros(0)]
    for start, stop in itertools.pairwise(starts.tolist()):
        shared = shared_box_areas(boxes[start:stop], boxes[start:stop])
        found = np.flatnonzero(shared)
        pair = np.stack(np.divmod(found, stop - start), axis=1)
        once = pair[:, 0] < pair[:, 1]
        common.append(shared.ravel()[found[once]])
        pairs.append(pair[once] + start)
    pair, shared = np.concatenate(pairs), np.concatenate(common)
    one, other = rows[pair].T
    extent = box_areas(measured.boxes_px)
    iou = shared / (extent[one] + extent[other] - shared).clip(1e-9)
    twin = np.where(measured.classes[one] == measured.classes[other], iou, iou * 0.8)
    _raise_both(values, "duplicate", one, other, (twin - 0.5).clip(0) * 2)
    close = shared > 0.3 * np.minimum(extent[one], extent[other]).clip(1)
    one, other = one[close], other[close]
    pixels = shared_pixels(segments, pair[close])
    smaller = np.minimum(measured.area_px[one], measured.area_px[other]).clip(1)
    _raise_both(values, "overlap", one, other, pixels / smaller)


def _raise_both(values: Numbers, name: str, one: IntArray, other: IntArray, to: Numbers) -> None:
    column = values[:, COLUMN[name]]
    some = to > 0
    np.maximum.at(column, one[some], to[some])
    np.maximum.at(column, other[some], to[some])


def _neighbours(values: Numbers, measured: Measured) -> None:
    """Compare with the same object one frame before and after: gone, another class or shape."""
    count = len(measured.classes)
    matches = np.full((2, count), -1)
    beside = np.zeros(count, bool)
    for i, j in itertools.pairwise(range(len(measured.labeled))):
        if not (measured.labeled[i] and measured.labeled[j]):
            continue
        one, other = measured.rows(i), measured.rows(j)
        beside[one] = beside[other] = True
        _match(measured, one, other, matches)
    for match in matches:
        has = np.flatnonzero(match >= 0)
        to = match[has]
        # How much of its box an object fills hardly changes from frame to frame.
        moved = np.abs(measured.log_area[has] - measured.log_area[to])
        for name, change in (
            ("flicker", np.abs(measured.fill[has] - measured.fill[to])),
            ("shape_change", moved.clip(0, 2) / 2),
            ("class_change", measured.classes[has] != measured.classes[to]),
        ):
            column = values[:, COLUMN[name]]
            column[has] = np.maximum(column[has], change)
    whole = values[:, COLUMN["truncated"]] == 0
    values[:, COLUMN["lonely"]] = beside & (matches < 0).all(axis=0) & whole


def _match(measured: Measured, one: slice, other: slice, matches: IntArray) -> None:
    """Find the same objects in two frames: row of the other one's, -1 where there is none.

    Args:
        measured: what is known of the frames.
        one: rows of the earlier frame.
        other: rows of the later one.
        matches: int64 (2, N), written: in the frame after, and in the frame before.

    """
    if one.start == one.stop or other.start == other.stop:
        return
    score = box_ious(measured.boxes_px[one], measured.boxes_px[other])
    tracks = measured.tracks[one]
    if (tracks >= 0).any():
        same = (tracks[:, None] == measured.tracks[other][None, :]) & (tracks >= 0)[:, None]
        score[same] = 2
    for side, (rows, start) in enumerate(((one, other.start), (other, one.start))):
        best = score.max(axis=1 - side) >= MATCH_IOU
        matches[side, rows] = np.where(best, score.argmax(axis=1 - side) + start, -1)


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
