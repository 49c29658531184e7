"""Track ids and classes along tracks, for the labels of one camera sequence.

The tracker goes by boxes. Masks are the second cue: they part what the tracker has joined although
the two masks are of different things, and join what it has lost although the mask is where its
object was going. The same labels give the same ids, wherever and however often this is done.

Masks are compared in the coordinates of their boxes, sampled at 32 x 32 points. Two of one object,
frames apart, then lie on each other although the box has moved and grown, and comparing them costs
a few instructions. Gaps are frames in which a detector lost an object for a moment.
"""

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import Arrays, Rows
from sam2_core.types import IntArray, Masks
from tasks.masks.crops import BoolArray, masks_of, run_edges
from tasks.risk.geometry import Numbers, best_pairs, shared_box_areas
from tasks.store.manifests import Fresh, Manifest, labels_of
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import FrameTracks
from tasks.types import FrameRef
from tasks.wording import counted

GRID = 32
WORDS = GRID * GRID // 64
_CANVAS = 48
_BITS = 2.0 ** np.arange(_CANVAS)
ShapeArray = npt.NDArray[np.uint64]
_CENTRES = (np.arange(GRID) + 0.5) / GRID
_POINTS = (np.arange(_CANVAS) + 0.5) / _CANVAS
_PAIRS = 128  # of masks that are looked at together, which stay in a core's cache


def shapes_of(masks: Masks, boxes_xyxy_px: Numbers) -> ShapeArray:
    """Sample N masks over their boxes; no mask is painted, however many runs it has.

    Args:
        masks: N masks of one image.
        boxes_xyxy_px: float (N, 4), each with an area.

    Returns:
        uint64 (N, 16): a bit for each of 32 x 32 points, row by row.

    Raises:
        ValueError: a mask is damaged.

    """
    grids = _sampled(masks.rle, np.asarray(boxes_xyxy_px, np.float64), masks.size_hw)
    bits = np.packbits(grids.reshape(len(masks), GRID * GRID), axis=1)
    return np.ascontiguousarray(bits).view(np.uint64)


def _sampled(rle: Sequence[bytes], boxes: Numbers, size_hw: tuple[int, int]) -> BoolArray:
    """Take masks at the points of their boxes: (N, 32, 32); outside the image is background."""
    height, width = size_hw
    low, high = boxes[:, :2, None], boxes[:, 2:, None]
    column, row = np.floor(low + _CENTRES * (high - low)).transpose(1, 0, 2)
    inside = ((row >= 0) & (row < height))[:, None] & ((column >= 0) & (column < width))[:, :, None]
    places = column.clip(0, max(width - 1, 0)).astype(np.int64) * height
    places += np.arange(len(rle))[:, None] * (height * width)
    rows = row.clip(0, max(height - 1, 0)).astype(np.int64)
    every = places[:, :, None] + rows[:, None]
    before = np.searchsorted(run_edges(masks_of(rle, size_hw)), every.reshape(-1), side="right")
    odd = (before & 1).astype(np.bool_).reshape(every.shape)
    return np.asarray(odd & inside).transpose(0, 2, 1)


def agreements(first: ShapeArray, second: ShapeArray) -> Numbers:
    """IoU of masks row by row after their boxes were laid on each other: float64 (N,).

    Two empty masks agree.
    """
    shared = np.bitwise_count(first & second).sum(axis=-1, dtype=np.int64)
    union = np.bitwise_count(first | second).sum(axis=-1, dtype=np.int64)
    return np.where(union > 0, shared / np.maximum(union, 1), 1.0)


def extents_of(shapes: ShapeArray) -> Numbers:
    """Where in their boxes N masks lie: float64 (N, 4), left, top, right, bottom in [0, 1].

    They are a hundredth of a cell too large, so that no rounding leaves a point of a mask outside.
    """
    rows = shapes.view(np.uint8).reshape(len(shapes), GRID, GRID // 8)
    columns = np.unpackbits(np.bitwise_or.reduce(rows, axis=1), axis=1)
    lines = np.stack([columns, rows.any(axis=2)], axis=1)
    first, last = lines.argmax(axis=2), GRID - lines[:, :, ::-1].argmax(axis=2)
    cells = np.concatenate([first - 0.01, last + 0.01], axis=1)
    return np.asarray((cells / GRID).clip(0, 1))


def placed_px(extents: Numbers, boxes_px: Numbers) -> Numbers:
    """Put extents of masks into their boxes: (N, 4), never beyond them."""
    low, high = np.tile(boxes_px[:, :2], 2), np.tile(boxes_px[:, 2:], 2)
    return np.asarray((low + extents * (high - low)).clip(low, high))


def placed_ious(
    first: ShapeArray, first_boxes: Numbers, second: ShapeArray, boxes: Numbers
) -> Numbers:
    """IoU of pairs of masks where each is put into a box: of ones that have moved, and ones there.

    Both are drawn over the box around the two, at 48 x 48 points. Two empty masks have none.

    Args:
        first: uint64 (P, 16).
        first_boxes: float64 (P, 4), where in the image they are put.
        second: uint64 (P, 16).
        boxes: float64 (P, 4), where those are.

    Returns:
        float64 (P,).

    """
    found = np.zeros(len(first))
    for start in range(0, len(first), _PAIRS):
        part = slice(start, start + _PAIRS)
        first_px, second_px = first_boxes[part], boxes[part]
        low, high = (
            np.minimum(first_px[:, :2], second_px[:, :2]),
            np.maximum(first_px[:, 2:], second_px[:, 2:]),
        )
        points = low[:, :, None] + _POINTS * (high - low)[:, :, None]
        drawn, there = (
            _drawn(first[part], first_px, points),
            _drawn(second[part], second_px, points),
        )
        shared = np.bitwise_count(drawn & there).sum(axis=1, dtype=np.int64)
        union = np.bitwise_count(drawn | there).sum(axis=1, dtype=np.int64)
        found[part] = shared / np.maximum(union, 1)
    return found


def _drawn(shapes: ShapeArray, boxes: Numbers, points: Numbers) -> ShapeArray:
    """Draw P masks at points x and y (P, 2, 48): a word for each row of points, (P, 48).

    A cell of a mask covers some successive points of a row: a number with their bits. The numbers
    of all cells that are set add up to the row's bits, in whole floats far below 2**53.
    """
    count = len(shapes)
    sides = (boxes[:, 2:] - boxes[:, :2]).clip(1e-6)[:, :, None]
    cell = np.floor((points - boxes[:, :2, None]) / sides * GRID)
    outside = (cell < 0) | (cell >= GRID)
    column, row = np.where(outside, GRID, cell).astype(np.int64).transpose(1, 0, 2)
    own = column + np.arange(count)[:, None] * (GRID + 1)
    bits = np.bincount(own.reshape(-1), np.tile(_BITS, count), count * (GRID + 1))
    grids = np.unpackbits(shapes.view(np.uint8), axis=1).reshape(count, GRID, GRID)
    of_cells = bits.reshape(count, GRID + 1, 1)[:, :GRID]
    words = np.zeros((count, GRID + 1), np.uint64)
    words[:, :GRID] = (grids.astype(np.float64) @ of_cells)[:, :, 0]
    return np.take_along_axis(words, row, axis=1)


# A detector may lose an object for so many frames; longer, its motion says little of its place.
MOST_MISSED = 30
LEAST_IOU = 0.1  # of a box with where its object is expected; with 0.3 fast ones are lost
DIRECTION_FRAMES, DIRECTION_WEIGHT = 3, 0.2  # of OC-SORT's paper
_ALIKE = (
    frozenset({"car", "truck", "bus", "van", "trailer", "train", "vehicle"}),
    frozenset({"person", "pedestrian", "rider", "cyclist"}),
    frozenset({"bicycle", "motorcycle", "motorbike", "bike", "scooter"}),
    frozenset({"traffic sign", "stop sign"}),
)


def settings() -> dict[str, Any]:
    """Return what decides the ids, as plain JSON values."""
    from importlib.metadata import version

    return {
        "tracker": f"trackforge OC-SORT {version('trackforge')}",
        "most_missed": MOST_MISSED,
        "least_iou": LEAST_IOU,
        "direction": [DIRECTION_FRAMES, DIRECTION_WEIGHT],
        "least_agreement": LEAST_AGREEMENT,
        "reach_frames": REACH_FRAMES,
        "least_placed_iou": LEAST_PLACED_IOU,
    }


def group_of(label: str) -> str:
    """Name of the classes among which an object may change."""
    name = label.strip().lower()
    return next((min(group) for group in _ALIKE if name in group), name)


class Associator:
    """Gives numbers to the boxes of one camera's frames, in their order."""

    def __init__(self) -> None:
        """Start before the first frame."""
        self._trackers: dict[str, Any] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def number(self, boxes_xyxy_px: Numbers, scores: Numbers, labels: Sequence[str]) -> IntArray:
        """Give numbers to the boxes of the next frame; one without boxes counts, too.

        Args:
            boxes_xyxy_px: float (N, 4), each with an area.
            scores: float (N,).
            labels: N classes.

        Returns:
            int64 (N,), equal for boxes of one object.

        """
        from trackforge import OCSORT

        numbers = np.full(len(labels), -1, np.int64)
        groups = [group_of(label) for label in labels]
        for group in groups:
            if group not in self._trackers:
                self._trackers[group] = OCSORT(
                    max_age=MOST_MISSED,
                    min_hits=1,  # every box is somebody's: none waits to be believed
                    iou_threshold=LEAST_IOU,
                    delta_t=DIRECTION_FRAMES,
                    inertia=DIRECTION_WEIGHT,
                )
        for group, tracker in self._trackers.items():
            rows = [row for row, name in enumerate(groups) if name == group]
            left, top, right, bottom = boxes_xyxy_px[rows].T.tolist() if rows else ([],) * 4
            seen = [
                ([x0, y0, x1 - x0, y1 - y0], float(scores[row]), 0)
                for x0, y0, x1, y1, row in zip(left, top, right, bottom, rows, strict=True)
            ]
            for found, _, _, _, place in tracker.update(seen):
                key = (group, int(found))
                numbers[rows[place]] = self._numbers.setdefault(key, len(self._numbers))
        return numbers


_Columns: TypeAlias = tuple[IntArray, IntArray, Numbers, Numbers, ShapeArray]


@dataclass(frozen=True, eq=False)
class Sightings(Rows):
    """S labels of a camera sequence, frame after frame.

    Attributes:
        frame: int64 (S,), number of the frame in the sequence, failed ones counted.
        row: int64 (S,), of the label in its frame.
        given: int64 (S,), track id that came with the box, -1 for none.
        number: int64 (S,), what the tracker says; -1 where it was not asked.
        boxes_px: float64 (S, 4), zeros where there is no box with an area.
        scores: float64 (S,).
        shapes: uint64 (S, 16), masks in their boxes.
        labels: S classes.
        counts: labels of each frame.

    """

    forms: ClassVar = {
        "frame": "int64 (S)",
        "row": "int64 (S)",
        "given": "int64 (S)",
        "number": "int64 (S)",
        "boxes_px": "float64 (S, 4)",
        "scores": "float64 (S)",
        "shapes": "uint64 (S, 16)",
        "labels": "tuple (S)",
    }
    frame: IntArray
    row: IntArray
    given: IntArray
    number: IntArray
    boxes_px: Numbers
    scores: Numbers
    shapes: ShapeArray
    labels: tuple[str, ...]
    counts: tuple[int, ...]


def sightings_of(frames: Iterable[LabeledFrame]) -> Sightings:
    """Look at the frames of one camera in order, each once; masks are not kept."""
    none = np.zeros(0, np.int64)
    columns: list[_Columns] = [
        (none, none, np.zeros((0, 4)), np.zeros(0), np.zeros((0, WORDS), np.uint64))
    ]
    labels: list[str] = []
    associator = Associator()
    for frame in frames:
        columns.append(_columns_of(frame, associator))
        labels += frame.boxes.labels
    given, number, boxes_px, scores, shapes = map(np.concatenate, zip(*columns, strict=True))
    counts = [len(part[0]) for part in columns[1:]]
    frame_of_row = np.repeat(np.arange(len(counts)), counts)
    row = np.arange(len(frame_of_row)) - (np.cumsum([0, *counts])[:-1])[frame_of_row]
    return Sightings(
        frame_of_row, row, given, number, boxes_px, scores, shapes, tuple(labels), tuple(counts)
    )


def _columns_of(frame: LabeledFrame, associator: Associator) -> _Columns:
    """Columns of a frame's labels; the tracker is asked for those that no other tracker knows."""
    boxes, count = frame.boxes, len(frame.boxes)
    px = boxes.xyxy_px.astype(np.float64)
    usable = np.isfinite(px).all(axis=1) & (px[:, 0] < px[:, 2]) & (px[:, 1] < px[:, 3])
    px[~usable] = 0
    given = np.full(count, -1, np.int64) if boxes.track_ids is None else boxes.track_ids
    rows = np.flatnonzero(usable & (given < 0))
    number = np.full(count, -1, np.int64)
    scores = np.nan_to_num(boxes.scores.astype(np.float64), posinf=0, neginf=0)
    number[rows] = associator.number(px[rows], scores[rows], [boxes.labels[row] for row in rows])
    shapes = np.zeros((count, WORDS), np.uint64)
    if frame.masks is not None and count:
        shapes = shapes_of(frame.masks, px)
    return given, number, px, scores, shapes


# A mask is believed that agrees so well with the ones before and after, box laid on box, of which
# the model thinks so well, and that covers no other label so far.
LEAST_GAP_AGREEMENT, LEAST_PREDICTED_IOU, MOST_COVERED_IOU = 0.8, 0.75, 0.5


@dataclass(frozen=True, eq=False)
class Gap(Arrays):
    """An object in a frame where it was not found, between two where it was.

    Attributes:
        frame: number of the frame in the sequence.
        track_id: of the object.
        label: class of the object.
        score: the lower one of the two sightings'.
        box_px: float64 (4,), between the two.
        before: uint64 (16,), the last mask before the gap, in its box.
        after: uint64 (16,), the first mask after it.
        others_px: float64 (K, 4), boxes of the frame's labels.
        others: uint64 (K, 16), their masks.

    """

    forms: ClassVar = {
        "box_px": "float64 (4)",
        "before": "uint64 (16)",
        "after": "uint64 (16)",
        "others_px": "float64 (K, 4)",
        "others": "uint64 (K, 16)",
    }
    frame: int
    track_id: int
    label: str
    score: float
    box_px: Numbers
    before: ShapeArray
    after: ShapeArray
    others_px: Numbers
    others: ShapeArray

    def why_not_by(self, shape: ShapeArray, predicted_iou: float) -> str:
        """Why a mask in the gap's box, uint64 (16,), is not taken for the object's; "" if it is."""
        if not shape.any():
            return "no mask there"
        both = agreements(np.stack([shape, shape]), np.stack([self.before, self.after]))
        if not (both >= LEAST_GAP_AGREEMENT).all():
            return "mask unlike those before and after"
        if predicted_iou < LEAST_PREDICTED_IOU:
            return "the model doubts its mask"
        count = len(self.others)
        placed = np.tile(shape, (count, 1)), np.tile(self.box_px, (count, 1))
        covered = (placed_ious(self.others, self.others_px, *placed) >= MOST_COVERED_IOU).any()
        return "another label is there" if covered else ""


def gaps_of(
    seen: Sightings, chains: IntArray, ids: IntArray, labels: list[str], at_most: int
) -> tuple[list[Gap], Counter[str]]:
    """Find the gaps of at most so many frames, in the order of frames and ids.

    Returns:
        The gaps, and how many missing masks have none, by reason.

    """
    order = np.lexsort((np.arange(len(chains)), chains))
    earlier, later = order[:-1], order[1:]
    steps = seen.frame[later] - seen.frame[earlier]
    lost = (chains[earlier] == chains[later]) & (steps > 1)
    short = lost & (steps <= at_most + 1)
    between = seen.shapes[earlier].any(axis=1) & seen.shapes[later].any(axis=1)
    longer = f"lost for more than {counted(at_most, 'frame')}"
    missing = {longer: lost & ~short, "no mask before or after": short & ~between}
    passed = Counter({reason: int((steps - 1)[rows].sum()) for reason, rows in missing.items()})
    short &= between
    edges = np.cumsum([0, *seen.counts])
    found = []
    for first, second, frames in zip(earlier[short], later[short], steps[short], strict=True):
        for step in range(1, int(frames)):
            part, frame = step / frames, int(seen.frame[first]) + step
            box = (1 - part) * seen.boxes_px[first] + part * seen.boxes_px[second]
            score = float(min(seen.scores[first], seen.scores[second]))
            there = slice(int(edges[frame]), int(edges[frame + 1]))
            found.append(
                Gap(
                    frame, int(ids[first]), labels[first], score, box, seen.shapes[first],
                    seen.shapes[second], seen.boxes_px[there], seen.shapes[there],
                )
            )  # fmt: skip
    return sorted(found, key=lambda gap: (gap.frame, gap.track_id, gap.label)), +passed


# Two masks of successive sightings that agree less are of different things.
LEAST_AGREEMENT = 0.1
# Frames that a lost object may be gone for, and how well its mask must fit where it was going.
REACH_FRAMES, LEAST_PLACED_IOU = 12, 0.3
_MOTION_SIGHTINGS = 3  # the last ones, of which an object's motion is taken


@dataclass(frozen=True, eq=False)
class Tracked:
    """The tracks of one camera sequence.

    Attributes:
        frames: of each frame, in order.
        measures: see `measured`; `other_class`: labels of tracks of another class.
        gaps: of at most as many frames as asked for.
        no_gaps: masks that are missing along tracks and are in no gap, by reason.

    """

    frames: Sequence[FrameTracks]
    measures: dict[str, Any]
    gaps: Sequence[Gap] = ()
    no_gaps: Mapping[str, int] = field(default_factory=dict)


def track(frames: Iterable[LabeledFrame], gap_frames: int = 0) -> Tracked:
    """Track the labels of one camera sequence.

    Ids that came with the boxes are kept, and so are the classes along them; other ids follow
    them, in the order in which objects are first seen.

    Args:
        frames: every frame of the camera in order, failed ones too; looked at once, one by one.
        gap_frames: how long the gaps are at most that are returned.

    """
    seen = sightings_of(frames)
    chains = _joined(seen, _chains(seen))
    ids = _numbered(seen, chains)
    labels = _smoothed(seen, chains)
    edges = np.cumsum([0, *seen.counts])
    found = [
        FrameTracks(ids[start:stop], tuple(labels[start:stop]))
        for start, stop in itertools.pairwise(edges.tolist())
    ]
    smoothed = {"other_class": sum(map(operator.ne, labels, seen.labels))}
    measures = measured(seen, chains) | smoothed
    if not gap_frames:
        return Tracked(found, measures)
    return Tracked(found, measures, *gaps_of(seen, chains, ids, labels, gap_frames))


def _chains(seen: Sightings) -> IntArray:
    """Give equal numbers to the sightings of one object, int64 (S,).

    They are the tracker's where masks agree.
    Boxes with ids of their own are joined by them, whatever their classes.
    """
    names: dict[Any, int] = {}
    keys = [
        names.setdefault(("given", given) if given >= 0 else number, len(names))
        if given >= 0 or number >= 0
        else names.setdefault(("alone", index), len(names))
        for index, (given, number) in enumerate(
            zip(seen.given.tolist(), seen.number.tolist(), strict=True)
        )
    ]
    key = np.array(keys, np.int64)
    order = np.lexsort((np.arange(len(key)), key))
    earlier, later = order[:-1], order[1:]
    agree = agreements(seen.shapes[earlier], seen.shapes[later]) >= LEAST_AGREEMENT
    empty = ~(seen.shapes[earlier].any(axis=1) & seen.shapes[later].any(axis=1))
    goes_on = (key[earlier] == key[later]) & (agree | empty | (seen.given[earlier] >= 0))
    chains = np.zeros(len(key), np.int64)
    chains[order] = np.cumsum(np.r_[True, ~goes_on])[: len(key)] - 1
    return chains


def _joined(seen: Sightings, chains: IntArray) -> IntArray:
    """Join chains that begin with ones that ended shortly before and were going there.

    Frame by frame, so that what has been joined shows the motion for what comes next.
    """
    members = _rows_of_chains(chains)
    starting: dict[int, list[int]] = {}
    for chain, rows in members.items():
        if seen.number[rows[0]] >= 0:
            starting.setdefault(int(seen.frame[rows[0]]), []).append(chain)
    recent = {chain: rows[-_MOTION_SIGHTINGS:].tolist() for chain, rows in members.items()}
    groups, extents = _groups(seen), extents_of(seen.shapes)
    ending: dict[int, set[int]] = defaultdict(set)
    goes_on = np.arange(max(members, default=-1) + 1)
    for frame, heads in sorted(starting.items()):
        reach = range(frame - REACH_FRAMES, frame)
        lost = sorted(chain for end in reach for chain in ending.get(end, ()))
        new = np.array([members[head][0] for head in heads])
        pairs = _pairs(seen, groups, extents, [recent[chain] for chain in lost], new)
        tails = {heads[j]: lost[i] for i, j in pairs.items()}
        for head in heads:
            tail = tails.get(head, head)
            if tail != head:
                goes_on[head] = tail
                ending[int(seen.frame[recent[tail][-1]])].remove(tail)
                recent[tail] = [*recent[tail], *recent[head]][-_MOTION_SIGHTINGS:]
            ending[int(seen.frame[recent[tail][-1]])].add(tail)
    return goes_on[chains]


def _rows_of_chains(chains: IntArray) -> dict[int, IntArray]:
    """Sightings of each chain in order."""
    order = np.lexsort((np.arange(len(chains)), chains))
    starts = np.flatnonzero(np.diff(chains[order], prepend=-1))
    parts = np.split(order, starts[1:]) if len(order) else []
    return {int(chains[rows[0]]): rows for rows in parts}


def _groups(seen: Sightings) -> IntArray:
    """Equal numbers for sightings of classes among which an object may change, int64 (S,)."""
    names = np.array([group_of(label) for label in seen.labels], str)
    return np.unique(names, return_inverse=True)[1]


def _pairs(
    seen: Sightings,
    groups: IntArray,
    extents: Numbers,
    lost: Sequence[Sequence[int]],
    new: IntArray,
) -> dict[int, int]:
    """Pair lost chains with such as begin, the best fits first, each once.

    Args:
        seen: all sightings.
        groups: int64 (S,), of classes.
        extents: float64 (S, 4), of masks in their boxes.
        lost: of each lost chain its last sightings.
        new: int64 (M,), first sightings of the chains that begin in a frame.

    Returns:
        Which of `lost` goes on with which of `new`.

    """
    if not lost:
        return {}
    last = np.array([rows[-1] for rows in lost])
    earlier = np.array([rows[0] for rows in lost])
    expected = _expected_px(seen, earlier, last, int(seen.frame[new[0]]))
    places = placed_px(extents[last], expected), placed_px(extents[new], seen.boxes_px[new])
    near = shared_box_areas(*places) > 0  # of the others no two masks can have a point in common
    ended, begun = np.nonzero(near & (groups[last][:, None] == groups[new]))
    there = new[begun]
    fits = placed_ious(
        seen.shapes[last[ended]], expected[ended], seen.shapes[there], seen.boxes_px[there]
    )
    fitting = fits >= LEAST_PLACED_IOU
    return best_pairs(fits[fitting], ended[fitting], begun[fitting])


def _expected_px(seen: Sightings, earlier: IntArray, last: IntArray, frame: int) -> Numbers:
    """Boxes of objects in a later frame, as they moved before; their size stays as it is.

    Args:
        seen: all sightings.
        earlier: int64 (N,), of each object the sighting since which its motion is taken.
        last: int64 (N,), its last one.
        frame: the later frame.

    Returns:
        float64 (N, 4).

    """
    boxes = seen.boxes_px[last]
    passed = (seen.frame[last] - seen.frame[earlier])[:, None]
    moved = boxes - seen.boxes_px[earlier]
    step = (moved[:, :2] + moved[:, 2:]) / 2 / np.maximum(passed, 1)
    return np.asarray(boxes + np.tile(step * (frame - seen.frame[last])[:, None], 2))


def _numbered(seen: Sightings, chains: IntArray) -> IntArray:
    """Give ids: those that came with boxes, the others after them by first sighting."""
    following = int(seen.given.max(initial=0)) + 1
    ids: dict[int, int] = {}
    found = seen.given.copy()
    for index, chain in enumerate(chains.tolist()):
        if found[index] < 0:
            found[index] = ids.setdefault(chain, following + len(ids))
    return found


def _smoothed(seen: Sightings, chains: IntArray) -> list[str]:
    """Class of each sighting's track: the one with the largest sum of scores, each at least 0.01.

    Of equal ones, the first by name. Where the track came with the box, its class stays.
    """
    votes: dict[int, dict[str, float]] = {}
    for chain, label, score in zip(chains.tolist(), seen.labels, seen.scores.tolist(), strict=True):
        votes.setdefault(chain, defaultdict(float))[label] += max(score, 0.01)
    best = {
        chain: min(count, key=lambda label: (-count[label], label))
        for chain, count in votes.items()
    }
    return [
        label if given >= 0 else best[chain]
        for chain, given, label in zip(
            chains.tolist(), seen.given.tolist(), seen.labels, strict=True
        )
    ]


# Masks of successive frames that agree less, once their boxes lie on each other, flicker.
STEADY = 0.75
SHORT_GAP_FRAMES = 3


def measured(seen: Sightings, chains: IntArray) -> dict[str, Any]:
    """Measure a camera sequence.

    Args:
        seen: its labels.
        chains: int64 (S,), equal for labels of one object.

    Returns:
        `labels`; `tracks` that have a mask; `pairs` of an object's masks in successive frames,
        their `agreement` (the mean IoU after their boxes were laid on each other) and how many
        `flicker` (agree less than 0.75); `gaps` of at most 3 frames within tracks and `gap_frames`
        in them; and `class_changes` along tracks.

    """
    order = np.lexsort((np.arange(len(chains)), chains))
    earlier, later = order[:-1], order[1:]
    same = chains[earlier] == chains[later]
    earlier, later = earlier[same], later[same]
    steps = seen.frame[later] - seen.frame[earlier]
    masks = seen.shapes[earlier].any(axis=1) & seen.shapes[later].any(axis=1)
    beside = (steps == 1) & masks
    agree = agreements(seen.shapes[earlier[beside]], seen.shapes[later[beside]])
    short = (steps > 1) & (steps <= SHORT_GAP_FRAMES + 1)
    labels = np.array(seen.labels, object)
    return {
        "labels": len(seen),
        "tracks": len(set(chains[seen.shapes.any(axis=1)].tolist())),
        "pairs": len(agree),
        "agreement": round(float(agree.mean()), 4) if len(agree) else None,
        "flicker": int((agree < STEADY).sum()),
        "gaps": int(short.sum()),
        "gap_frames": int((steps[short] - 1).sum()),
        "class_changes": int((labels[earlier] != labels[later]).sum()),
    }


@dataclass(frozen=True, eq=False)
class MadeTracks:
    """The tracks of a sequence.

    Attributes:
        frames: every frame of it and its tracks, one camera after another.
        made: what made them, and `measures` by camera; plain JSON values.
        gaps: where an object was lost for a few frames, with the frames.
        no_gaps: masks that are missing along tracks and are in no gap, by reason.

    """

    frames: list[tuple[FrameRef, FrameTracks]]
    made: dict[str, Any]
    gaps: list[tuple[FrameRef, Gap]]
    no_gaps: Counter[str]

    @property
    def by_frame(self) -> dict[tuple[str, int], FrameTracks]:
        """Return them by camera and index, as `StoredTracks` has them."""
        return {(frame.camera, frame.index): tracks for frame, tracks in self.frames}


def make_tracks(
    out_uri: str, manifest: Manifest, gap_frames: int = 0, fresh: Fresh | None = None
) -> MadeTracks:
    """Track the labels of a sequence, camera by camera; of masks only samples are kept in memory.

    Args:
        out_uri: the run's storage.
        manifest: which labels.
        gap_frames: how long the gaps are at most that are returned.
        fresh: labels that are in memory still.

    Raises:
        NotFoundError, IncompleteArtifactError: labels are gone or damaged.

    """

    def looked_at(camera: str, refs: list[FrameRef], failed: set[int]) -> Iterator[LabeledFrame]:
        """Yield a camera's frames in order, remembering which they are, and which have failed."""
        for chunk in manifest.chunks:
            if chunk.camera == camera:
                for frame in labels_of(out_uri, manifest, chunk, fresh):
                    if frame.failure:
                        failed.add(len(refs))
                    refs.append(frame.frame)
                    yield frame

    frames: list[tuple[FrameRef, FrameTracks]] = []
    gaps: list[tuple[FrameRef, Gap]] = []
    no_gaps: Counter[str] = Counter()
    measures = {}
    for camera in dict.fromkeys(chunk.camera for chunk in manifest.chunks):
        refs: list[FrameRef] = []
        failed: set[int] = set()
        tracked = track(looked_at(camera, refs, failed), gap_frames)
        there = [(refs[gap.frame], gap) for gap in tracked.gaps if gap.frame not in failed]
        gaps += there
        no_gaps.update(tracked.no_gaps)
        no_gaps["the frame failed"] += len(tracked.gaps) - len(there)
        frames += zip(refs, tracked.frames, strict=True)
        measures[camera] = tracked.measures
    return MadeTracks(frames, {"settings": settings(), "measures": measures}, gaps, +no_gaps)
