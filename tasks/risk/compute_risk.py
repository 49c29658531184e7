"""How likely a label is wrong, and why: a score in [0, 1] and reasons with stable ids.

The score is a logistic model of features, fitted on rendered scenes where the truth is known to
predict that a mask's IoU with it is under 0.75, and calibrated on others. Reasons are plain
thresholds on single features, so that a person sees at once what to look for.

Features come from boxes, scores and run lengths; images are not looked at. The instances of many
frames are measured at once.

Two maps lead from the model's log-odds to a chance that means something. Both increase strictly, so
that no two labels become equal that were not: `Calibration` comes with the weights and goes through
the shares of bad labels that were found on drives that they have not seen (isotonic regression);
`Recalibration` comes from a dataset's own decisions, of which there are few: two numbers (Platt).
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rlemasklib import RLEMask

from sam2_core.arrays import Arrays
from sam2_core.types import FloatArray, IntArray
from tasks.masks.crops import MASKS_AT_ONCE, BoolArray, bounds_of, masks_of, segments_of
from tasks.risk.geometry import (
    Numbers,
    box_areas,
    box_iou_rows,
    box_ious,
    share_outside_largest_piece,
    shared_box_areas,
)
from tasks.store.tables import LabeledFrame

# Beyond what the fit has seen the chance goes on towards 0 and 1, ever more slowly: half of the
# rest of the way in so many log-odds. Real footage is much stranger than rendered footage, and
# labels that are all "certainly bad" would have no order.
TAIL_ODDS = 10.0
_CERTAIN = 1e-6


@dataclass(frozen=True)
class Calibration:
    """A strictly increasing line through knots.

    Attributes:
        odds: log-odds that a model gives, strictly increasing, one at least.
        risk: share of bad labels there, strictly increasing, between 0 and 1.

    """

    odds: tuple[float, ...]
    risk: tuple[float, ...]

    def of(self, odds: Numbers) -> Numbers:
        """Chance that labels are bad, by their log-odds (N,): float64 (N,)."""
        first, last = self.odds[0], self.odds[-1]
        inside = np.interp(odds, self.odds, self.risk)
        below = TAIL_ODDS / (TAIL_ODDS + (first - odds).clip(0))
        above = TAIL_ODDS / (TAIL_ODDS + (odds - last).clip(0))
        result = np.where(odds < first, self.risk[0] * below, inside)
        return np.asarray(np.where(odds > last, 1 - (1 - self.risk[-1]) * above, result))


@dataclass(frozen=True)
class Recalibration:
    """What people's decisions on a dataset say about its risk: slope and offset in log-odds.

    Attributes:
        slope: above 0; under 1 the risk was too sure of itself.
        offset: above 0: more labels are wrong than the risk said.
        decisions: how many it was fitted to.

    """

    slope: float = 1.0
    offset: float = 0.0
    decisions: int = 0

    def of(self, risk: Numbers) -> Numbers:
        """Chance that a person finds a label wrong, by its risk (N,) from the model."""
        return sigmoid(self.slope * logit(risk) + self.offset)

    def before(self, risk: Numbers) -> Numbers:
        """Go back to the model's own risk."""
        return sigmoid((logit(risk) - self.offset) / self.slope)

    def after(self, other: Recalibration) -> tuple[float, float]:
        """Slope and offset that lead from what `other` has made of a risk to what this makes."""
        slope = self.slope / other.slope
        return slope, self.offset - slope * other.offset

    @staticmethod
    def fit(risk: Numbers, wrong: Numbers) -> Recalibration:
        """Fit to the model's risk (N,) and to decisions (N,), 1 where a label was wrong.

        Raises:
            ValueError: labels of a higher risk were not wrong more often, or all were the same.

        """
        if len(np.unique(wrong)) < 2:
            raise ValueError("all of them are the same")
        found = _logistic().fit(logit(risk)[:, None], wrong)
        slope, offset = float(found.coef_[0, 0]), float(found.intercept_[0])
        if slope <= 0:
            raise ValueError("labels of a higher risk were not wrong more often")
        return Recalibration(slope, offset, len(wrong))

    @staticmethod
    def unseen(risk: Numbers, wrong: Numbers) -> Numbers:
        """Chance of each label (N,) by a fit to the others, which it has not seen."""
        from sklearn.model_selection import StratifiedKFold, cross_val_predict

        split = StratifiedKFold(5, shuffle=True, random_state=0)
        x = logit(risk)[:, None]
        made = cross_val_predict(_logistic(), x, wrong, cv=split, method="predict_proba")
        return np.asarray(made[:, 1])


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=100.0)


def logit(risk: Numbers) -> Numbers:
    """Log-odds of chances (N,)."""
    sure = np.asarray(risk, np.float64).clip(_CERTAIN, 1 - _CERTAIN)
    return np.asarray(np.log(sure / (1 - sure)))


def sigmoid(odds: Numbers) -> Numbers:
    """Chances of log-odds (N,)."""
    return np.asarray(1 / (1 + np.exp(-odds)))


_BINS = 10
_ORANGE, _BLUE, _GREY = "#ff6d04", "#2b7bba", "#6b7280"


def reliability(risk: Numbers, bad: Numbers) -> list[tuple[float, float, int]]:
    """Reliability diagram: of each tenth of [0, 1], mean risk, share of bad ones, and how many."""
    tenth = (risk * _BINS).astype(int).clip(0, _BINS - 1)
    rows = [(risk[tenth == number], bad[tenth == number]) for number in range(_BINS)]
    return [(float(r.mean()), float(b.mean()), len(r)) for r, b in rows if len(r)]


def calibration_error(risk: Numbers, bad: Numbers) -> float:
    """How far risk and share of bad ones are apart on the mean (expected calibration error)."""
    rows = reliability(risk, bad)
    return sum(abs(mean - share) * count for mean, share, count in rows) / max(len(risk), 1)


def reliability_picture(title: str, risks: Mapping[str, Numbers], bad: Numbers) -> bytes:
    """Draw reliability diagrams over one another, and how many labels have which risk: a PNG.

    Args:
        title: above it.
        risks: name -> float (N,), two at most; the names go into the legend with their errors.
        bad: float (N,), 1 where a label was bad.

    """
    from matplotlib.figure import Figure
    from scipy.stats import binomtest

    figure = Figure(figsize=(6.4, 6.4), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    above.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle=":", label="as it should be")
    edges = np.linspace(0, 1, _BINS + 1)
    for (name, risk), colour in zip(risks.items(), (_ORANGE, _BLUE), strict=False):
        rows = reliability(risk, bad)
        mean, share, _ = (np.array(column, np.float64) for column in zip(*rows, strict=True))
        # Wilson's interval: one label that was wrong does not make a share certain.
        tests = [binomtest(round(wrong * count), count) for _, wrong, count in rows]
        found = [test.proportion_ci(method="wilson") for test in tests]
        reach = [
            share - [interval.low for interval in found],
            [interval.high for interval in found] - share,
        ]
        error = calibration_error(risk, bad)
        above.errorbar(
            mean, share, yerr=np.maximum(reach, 0), color=colour, marker="o", capsize=3,
            label=f"{name}: off by {error:.3f} on the mean",
        )  # fmt: skip
        below.hist(risk, bins=edges, histtype="step", color=colour, linewidth=1.5)
    above.set(ylabel="share that was wrong", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    figure.suptitle(title)
    # Above the diagram: any of its corners may be taken.
    above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    below.set(xlabel="risk", ylabel="labels")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


@dataclass(frozen=True, eq=False)
class Measured(Arrays):
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

    forms: ClassVar = {
        "starts": "int64 (edges)",
        "labeled": "bool (F)",
        "boxes_px": "float64 (N, 4)",
        "size_hw_px": "float64 (N, 2)",
        "area_px": "float64 (N)",
        "fill": "float64 (N)",
        "log_area": "float64 (N)",
        "classes": "int64 (N)",
        "tracks": "int64 (N)",
    }
    starts: IntArray
    labeled: BoolArray
    boxes_px: Numbers
    size_hw_px: Numbers
    area_px: Numbers
    fill: Numbers
    log_area: Numbers
    classes: IntArray
    tracks: IntArray

    @staticmethod
    def of(frames: Sequence[LabeledFrame]) -> Measured:
        """Measure what needs no mask pixels."""
        counts = [0 if frame.masks is None else len(frame.boxes) for frame in frames]
        some = [(frame.boxes, frame.masks) for frame in frames if frame.masks is not None]
        px = np.concatenate([np.zeros((0, 4)), *(boxes.xyxy_px for boxes, _ in some)])
        px[~np.isfinite(px).all(axis=1)] = 0
        px[(px[:, 2] < px[:, 0]) | (px[:, 3] < px[:, 1])] = 0
        area = np.concatenate([np.zeros(0), *(masks.area_px for _, masks in some)])
        extent = box_areas(px).clip(1)
        numbers: dict[str, int] = {}
        names = [
            numbers.setdefault(label, len(numbers)) for boxes, _ in some for label in boxes.labels
        ]
        tracks = [
            np.full(len(boxes), -1) if boxes.track_ids is None else boxes.track_ids
            for boxes, _ in some
        ]
        sizes = np.array([masks.size_hw for _, masks in some], np.float64).reshape(-1, 2)
        return Measured(
            np.cumsum([0, *counts]),
            np.array([frame.masks is not None for frame in frames], bool), px,
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
    some = [(frame.boxes, frame.masks) for frame in frames if frame.masks is not None]
    if not some:
        return
    values[:, COLUMN["low_predicted_iou"]] = 1 - np.concatenate([m.predicted_iou for _, m in some])
    values[:, COLUMN["unstable"]] = 1 - np.concatenate([m.stability for _, m in some])
    logits = np.concatenate([m.object_score for _, m in some]).clip(-30, 30)
    values[:, COLUMN["low_object_score"]] = 1 / (1 + np.exp(logits))
    scores = np.concatenate([boxes.scores for boxes, _ in some])
    values[:, COLUMN["low_score"]] = 1 - scores.clip(0, 1)  # imported ones may be any number
    followed = [_is_followed(frame) for frame in frames if frame.masks is not None]
    values[np.concatenate(followed), COLUMN["low_score"]] = 1  # no detector saw it there
    values[:, COLUMN["empty"]] = measured.area_px == 0


def _is_followed(frame: LabeledFrame) -> BoolArray:
    row = np.arange(len(frame.boxes))
    return np.asarray((row >= frame.detected) & (row < frame.detected + len(frame.followed)))


def _mask_features(
    values: Numbers, measured: Measured, frames: Sequence[LabeledFrame], chosen: Sequence[int]
) -> None:
    """Measure the masks of frames of one size."""
    masks = [found for found in (frames[i].masks for i in chosen) if found is not None]
    every = masks_of([rle for found in masks for rle in found.rle], masks[0].size_hw)
    rows = np.concatenate([np.arange(*measured.starts[i : i + 2]) for i in chosen])
    _shape(values, measured, every, rows)
    _overlaps(values, measured, list(map(len, masks)), every, rows)


def _shape(values: Numbers, measured: Measured, masks: Sequence[RLEMask], rows: IntArray) -> None:
    """Compare mask with box: outside it, too little or too much of it, in pieces, ragged."""
    height, width = masks[0].shape
    segments = segments_of(masks, (height, width))
    of, count = segments.mask, segments.count
    boxes = measured.boxes_px[rows]
    left, top, right, bottom = np.ascontiguousarray(boxes.T)
    width = np.minimum(segments.column + 1, right[of]) - np.maximum(segments.column, left[of])
    height = np.minimum(segments.bottom, bottom[of]) - np.maximum(segments.top, top[of])
    inside = np.bincount(of, width.clip(0, 1) * height.clip(0), minlength=count)
    area = measured.area_px[rows]
    some, extent = area > 0, np.exp(measured.log_area[rows])
    bounds = bounds_of(masks)
    # Upright objects give one segment a column. More of them mean pieces, holes or a torn edge.
    columns = (bounds[:, 2] - bounds[:, 0]).clip(1)
    pieces = np.bincount(of, minlength=count)
    for name, value in (
        ("spill", 1 - inside / area.clip(1)),
        ("underfill", (0.5 - inside / extent).clip(0)),
        ("overfill", (inside / extent - 0.85).clip(0)),
        ("box_mismatch", 1 - box_iou_rows(bounds.astype(np.float64), boxes)),
        ("ragged", (pieces / columns - 1.5).clip(0, 10) / 10),
        ("fragmented", share_outside_largest_piece(masks)),
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
    values: Numbers, measured: Measured, counts: Sequence[int], masks: Sequence[RLEMask],
    rows: IntArray,
) -> None:  # fmt: skip
    """Find masks that share pixels with another, and boxes that are another's twin.

    `counts` are how many masks each of the frames has.
    """
    boxes = measured.boxes_px[rows]
    starts = np.cumsum([0, *counts]).tolist()
    pairs: list[IntArray] = [np.zeros((0, 2), np.int64)]
    common: list[Numbers] = [np.zeros(0)]
    for start, stop in itertools.pairwise(starts):
        shared = shared_box_areas(boxes[start:stop], boxes[start:stop])
        found = np.flatnonzero(shared)
        pair = np.stack(np.divmod(found, stop - start), axis=1)
        once = pair[:, 0] < pair[:, 1]
        common.append(shared.ravel()[found[once]])
        pairs.append(pair[once] + start)
    pair, shared = np.concatenate(pairs), np.concatenate(common)
    first, second = rows[pair].T
    extent = box_areas(measured.boxes_px)
    iou = shared / (extent[first] + extent[second] - shared).clip(1e-9)
    twin = np.where(measured.classes[first] == measured.classes[second], iou, iou * 0.8)
    _raise_both(values, "duplicate", first, second, (twin - 0.5).clip(0) * 2)
    close = shared > 0.3 * np.minimum(extent[first], extent[second]).clip(1)
    first, second = first[close], second[close]
    both = (masks[a] & masks[b] for a, b in pair[close].tolist())
    pixels = np.array([mask.area() for mask in both], np.int64)
    smaller = np.minimum(measured.area_px[first], measured.area_px[second]).clip(1)
    _raise_both(values, "overlap", first, second, pixels / smaller)


def _raise_both(values: Numbers, name: str, first: IntArray, second: IntArray, to: Numbers) -> None:
    column = values[:, COLUMN[name]]
    some = to > 0
    np.maximum.at(column, first[some], to[some])
    np.maximum.at(column, second[some], to[some])


def _neighbours(values: Numbers, measured: Measured) -> None:
    """Compare with the same object one frame before and after: gone, another class or shape."""
    count = len(measured.classes)
    matches = np.full((2, count), -1)
    beside = np.zeros(count, bool)
    for i, j in itertools.pairwise(range(len(measured.labeled))):
        if not (measured.labeled[i] and measured.labeled[j]):
            continue
        earlier, later = measured.rows(i), measured.rows(j)
        beside[earlier] = beside[later] = True
        _match(measured, earlier, later, matches)
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


def _match(measured: Measured, earlier: slice, later: slice, matches: IntArray) -> None:
    """Find the same objects in two frames: row of the other one's, -1 where there is none.

    Args:
        measured: what is known of the frames.
        earlier: its rows of the first frame.
        later: its rows of the second frame.
        matches: int64 (2, N), written: in the frame after, and in the frame before.

    """
    if earlier.start == earlier.stop or later.start == later.stop:
        return
    score = box_ious(measured.boxes_px[earlier], measured.boxes_px[later])
    tracks = measured.tracks[earlier]
    if (tracks >= 0).any():
        same = (tracks[:, None] == measured.tracks[later][None, :]) & (tracks >= 0)[:, None]
        score[same] = 2
    for side, (rows, start) in enumerate(((earlier, later.start), (later, earlier.start))):
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
    for number in np.flatnonzero(np.bincount(classes) >= ENOUGH) if len(classes) else ():
        chosen = classes == number
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


WEIGHTS_PATH = Path(__file__).with_name("weights.json")
BAD_IOU = 0.75
# Reason id -> the feature's value from which on it is given. The ids are part of the interface:
# views, exports and decisions name them.
REASONS: Mapping[str, float] = {
    "empty": 0.5, "low_predicted_iou": 0.25, "unstable": 0.15, "low_object_score": 0.5,
    "low_score": 0.6, "spill": 0.15, "underfill": 0.25, "overfill": 0.1, "fragmented": 0.1,
    "ragged": 0.1, "box_mismatch": 0.3, "overlap": 0.5, "duplicate": 0.5, "tiny": 0.5,
    "truncated": 0.5, "flicker": 0.15, "lonely": 0.5, "class_change": 0.5, "unusual_size": 0.25,
    "shape_change": 0.35,
}  # fmt: skip
_REASON_NAMES = tuple(REASONS)
_REASON_COLUMNS = [COLUMN[name] for name in REASONS]
_REASON_LIMITS = np.array(list(REASONS.values()))
DESCRIPTIONS: Mapping[str, str] = {
    "empty": "the mask is empty",
    "low_predicted_iou": "the model itself expects a poor mask",
    "unstable": "the mask changes with the threshold",
    "low_object_score": "the model doubts that an object is there",
    "low_score": "the detector was unsure",
    "followed": "not detected: followed from the frames before",
    "spill": "a part of the mask is outside its box",
    "underfill": "the mask fills little of its box",
    "overfill": "the mask fills its whole box",
    "fragmented": "the mask is in pieces",
    "ragged": "the mask has holes or a torn edge",
    "box_mismatch": "the mask reaches much less far than its box, or farther",
    "overlap": "the mask and that of another label share pixels",
    "duplicate": "another box is nearly the same",
    "tiny": "few pixels",
    "truncated": "cut by the image's border",
    "flicker": "the mask differs from the frames before and after",
    "lonely": "the frames just before and after have no label at this place",
    "class_change": "another class in the frames before and after",
    "unusual_size": "unusual size for its class at this place",
    "shape_change": "the box jumps relative to the frames before and after",
}
# A reason in a few words, for lines that name several.
WORDS: Mapping[str, str] = {
    "empty": "empty", "low_predicted_iou": "poor mask expected", "unstable": "unstable mask",
    "low_object_score": "perhaps nothing there", "low_score": "detector unsure",
    "followed": "not detected", "spill": "mask leaves its box",
    "underfill": "mask fills little of its box", "overfill": "mask fills its whole box",
    "fragmented": "mask in pieces", "ragged": "ragged edge",
    "box_mismatch": "mask and box differ in size", "overlap": "covers another label",
    "duplicate": "seen twice", "tiny": "tiny", "truncated": "cut by the border",
    "flicker": "mask flickers", "lonely": "missing just before and after",
    "class_change": "class changes", "unusual_size": "unusual size", "shape_change": "box jumps",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Judgement(Arrays):
    """Risk of the N instances of a frame, and why.

    Attributes:
        risk: float32 (N,) in [0, 1].
        reasons: N tuples of reason ids, strongest first.

    """

    forms: ClassVar = {"risk": "float32 (N)", "reasons": "tuple (N)"}
    risk: FloatArray
    reasons: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RiskModel:
    """A logistic model: odds = offset + weights . features, no weight below zero; calibrated."""

    weights: tuple[float, ...]
    offset: float
    fitted_on: str = ""
    calibration: Calibration | None = None

    def odds(self, features: Numbers) -> Numbers:
        """Return the log-odds of N instances before calibration: float64 (N,)."""
        return np.asarray(features @ np.array(self.weights) + self.offset)

    def risk(self, features: Numbers) -> FloatArray:
        """Return the risk of N instances: float32 (N,) in [0, 1]."""
        odds = self.odds(features)
        risk = self.calibration.of(odds) if self.calibration else sigmoid(odds.clip(-30, 30))
        return risk.astype(np.float32)


@cache
def risk_model() -> RiskModel:
    """Read the fitted weights that are shipped with the package."""
    values = json.loads(WEIGHTS_PATH.read_text())
    if tuple(values["features"]) != FEATURES:
        raise ValueError(f"{WEIGHTS_PATH} was fitted on other features: run python -m lab.risk_fit")
    knots = values["calibration"]
    return RiskModel(
        tuple(values["weights"]), values["offset"], values["fitted_on"],
        Calibration(tuple(knots["odds"]), tuple(knots["risk"])),
    )  # fmt: skip


def compute_risk(
    frames: Sequence[LabeledFrame],
    before: Sequence[LabeledFrame] = (),
    after: Sequence[LabeledFrame] = (),
) -> list[Judgement]:
    """Judge the instances of successive frames of one camera.

    Args:
        frames: in order.
        before: what comes before them, if anything; the last one counts.
        after: what comes after them; the first one counts.

    """
    model = risk_model()
    judged = [judge(model, values) for values in measure_frames(frames, before, after)]
    return list(map(_as_followed, frames, judged))


def _as_followed(frame: LabeledFrame, found: Judgement) -> Judgement:
    """Say of followed labels that they are, in the place of their missing score."""
    if not frame.followed:
        return found
    reasons = tuple(
        tuple("followed" if followed and name == "low_score" else name for name in names)
        for followed, names in zip(_is_followed(frame).tolist(), found.reasons, strict=True)
    )
    return replace(found, reasons=reasons)


def compute_risk_of_parts(
    parts: Iterable[list[LabeledFrame]],
) -> Iterator[tuple[list[LabeledFrame], list[Judgement]]]:
    """Judge a camera's chunks one after another, each with the frames before and after it."""
    before: list[LabeledFrame] = []
    for current, after in pairwise(chain(parts, [[]])):
        yield current, compute_risk(current, before, after)
        before = current


def recalibrated(judgement: Judgement, recalibration: Recalibration) -> Judgement:
    """Judge as a dataset's own decisions say."""
    return replace(judgement, risk=recalibration.of(judgement.risk).astype(np.float32))


def judge(model: RiskModel, features: Numbers) -> Judgement:
    """Turn the features of a frame's instances into risk and reasons."""
    excess = features[:, _REASON_COLUMNS] / _REASON_LIMITS
    row, column = np.nonzero(excess >= 1)
    order = np.lexsort((-excess[row, column], row))
    names = [_REASON_NAMES[number] for number in column[order].tolist()]
    ends = np.bincount(row, minlength=len(features)).cumsum().tolist()
    reasons = tuple(tuple(names[a:b]) for a, b in zip([0, *ends], ends, strict=False))
    return Judgement(model.risk(features), reasons)


def sequence_risk(frame_risks: Numbers) -> float:
    """Risk of a sequence: the mean of its riskiest tenth of frames, which a lone one cannot set."""
    if not len(frame_risks):
        return 0.0
    worst = np.sort(frame_risks)[::-1][: max(1, len(frame_risks) // 10)]
    return float(worst.mean())
