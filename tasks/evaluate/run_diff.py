"""What would change, or did, between two runs over the same frames: instance by instance."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sam2_core.mask_geometry import SIZES, mask_iou, size_class
from sam2_core.types import AutolabelError
from tasks.evaluate.metrics import box_iou
from tasks.evaluate.run_side import FrameKey, Side, is_same
from tasks.export.frames import uncertified_runs
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef
from tasks.wording import counted

# Boxes of two runs that overlap at least so much are those of one object.
SAME_BOX_IOU = 0.5
# Risk, and so the order of review, follows the predicted IoU.
PREDICTED_IOU_CHANGE = 0.1
KINDS = ("mask", "class", "score", "gone", "new", "frame")
WORST = 12


@dataclass(frozen=True)
class Change:
    """An instance that is not the same in both runs.

    Attributes:
        kind: of `KINDS`.
        frame: where.
        label: its class in the first run, or in the second where it is new.
        area_px: of its mask there.
        iou: of the two masks, 0 where there is but one.
        box_xyxy_px: its box.
        rle: its masks in both runs, b"" where there is none.

    """

    kind: str
    frame: FrameRef
    label: str
    area_px: int
    iou: float
    box_xyxy_px: tuple[float, float, float, float]
    rle: tuple[bytes, bytes]


OnChange = Callable[[Change], object]


@dataclass
class _Counts:
    instances: int = 0
    changed: int = 0
    iou: float = 0.0
    matched: int = 0
    predicted: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def as_dict(self) -> dict[str, Any]:
        mean = self.iou / self.matched if self.matched else None
        gain = (self.predicted[1] - self.predicted[0]) / self.matched if self.matched else None
        return {
            "instances": self.instances, "changed": self.changed,
            "miou": None if mean is None else round(mean, 4),
            "predicted_iou_gain": None if gain is None else round(gain, 4) + 0.0,
        }  # fmt: skip


@dataclass
class RunDiff:
    """Adds up what two runs differ in.

    Attributes:
        threshold: masks of a lower IoU are changed.
        worst: the largest changes.
        sequences: how many instances changed in each sequence, and how many there are.
        run_keys: of the labels that are compared, on both sides.
        uncertified: where some of them were made with --allow-uncertified, what the certificates
            said; "" elsewhere; on both sides.
        mixed: libraries of several versions that labeled a sequence, by its name; on both sides.
        only_in_a, only_in_b: sequences that one run alone has; those of the first are changes.
        frames_only_in_a, frames_only_in_b: frames of common sequences that one run alone has, or
            has of another version of the picture; those of the first are changes.
        on_change: called with every change of an instance.

    """

    threshold: float
    counts: dict[tuple[str, str], _Counts] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    sequences: dict[str, list[int]] = field(default_factory=dict)
    frames: int = 0
    run_keys: tuple[tuple[str, ...], ...] = ((), ())
    uncertified: tuple[str, ...] = ("", "")
    mixed: tuple[dict[str, str], ...] = ({}, {})
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()
    frames_only_in_a: int = 0
    frames_only_in_b: int = 0
    on_change: OnChange = lambda _: None
    _heap: list[tuple[float, int, Change]] = field(default_factory=list)
    _serial: Iterator[int] = field(default_factory=itertools.count)

    @property
    def worst(self) -> list[Change]:
        """The changed instances with the least IoU; large ones first among equals."""
        return [change for *_, change in sorted(self._heap, key=lambda one: -one[0])]

    @property
    def changed_sequences(self) -> list[str]:
        """Sequences in which anything changed."""
        changed = {name for name, (count, _) in self.sequences.items() if count}
        return sorted({*changed, *self.only_in_a})

    def add_sequence(
        self, name: str, first: dict[FrameKey, LabeledFrame], second: dict[FrameKey, LabeledFrame]
    ) -> None:
        """Compare a sequence of both runs."""
        for key in first.keys() & second.keys():
            self.add(first[key], second[key])
        lost = len(first.keys() - second.keys())
        self.frames_only_in_a += lost
        self.frames_only_in_b += len(second.keys() - first.keys())
        self.kinds["frame"] += lost
        self.sequences.setdefault(name, [0, 0])[0] += lost

    def add(self, first: LabeledFrame, second: LabeledFrame) -> None:
        """Compare a frame of both runs."""
        self.frames += 1
        tally = self.sequences.setdefault(first.frame.sequence_id, [0, 0])
        if first.masks is None or second.masks is None:
            if (first.masks is None) != (second.masks is None):
                self.kinds["frame"] += 1
                tally[0] += 1
            return
        pairs = _pairs(first, second)
        for a, b in pairs:
            self._instance(first, a, second, b, tally)
        for side, kind, taken in (
            (first, "gone", {a for a, _ in pairs}), (second, "new", {b for _, b in pairs})
        ):  # fmt: skip
            for row in sorted(set(range(len(side.boxes))) - taken):
                self._alone(side, row, kind, tally)

    def _instance(
        self, first: LabeledFrame, a: int, second: LabeledFrame, b: int, tally: list[int]
    ) -> None:
        assert first.masks is not None  # noqa: S101 - compared frames have masks
        assert second.masks is not None  # noqa: S101
        rle = first.masks.rle[a], second.masks.rle[b]
        iou = 1.0 if rle[0] == rle[1] else mask_iou(*rle, first.masks.size_hw)
        label, area = first.boxes.labels[a], int(first.masks.area_px[a])
        said = float(first.masks.predicted_iou[a]), float(second.masks.predicted_iou[b])
        kind = "score" if abs(said[1] - said[0]) > PREDICTED_IOU_CHANGE else ""
        kind = "class" if label != second.boxes.labels[b] else kind
        kind = "mask" if iou < self.threshold else kind
        there = area > 0, int(second.masks.area_px[b]) > 0
        kind = {(True, False): "gone", (False, True): "new"}.get(there, kind)
        for entry in self._entries(label, area):
            entry.instances += 1
            entry.matched += 1
            entry.iou += iou
            entry.changed += bool(kind)
            entry.predicted[0] += said[0]
            entry.predicted[1] += said[1]
        tally[1] += 1
        if kind:
            self._note(Change(kind, first.frame, label, area, iou, _box(first, a), rle), tally)

    def _alone(self, side: LabeledFrame, row: int, kind: str, tally: list[int]) -> None:
        assert side.masks  # noqa: S101 - compared frames have masks
        label, area = side.boxes.labels[row], int(side.masks.area_px[row])
        for entry in self._entries(label, area):
            entry.instances += 1
            entry.changed += 1
        tally[1] += 1
        rle = side.masks.rle[row]
        both = (rle, b"") if kind == "gone" else (b"", rle)
        self._note(Change(kind, side.frame, label, area, 0.0, _box(side, row), both), tally)

    def _entries(self, label: str, area: int) -> list[_Counts]:
        keys = (("all", ""), ("class", label), ("size", size_class(area)))
        return [self.counts.setdefault(key, _Counts()) for key in keys]

    def _note(self, change: Change, tally: list[int]) -> None:
        self.kinds[change.kind] += 1
        tally[0] += 1
        self.on_change(change)
        weight = (1 - change.iou) * float(np.sqrt(change.area_px + 1))
        heapq.heappush(self._heap, (weight, next(self._serial), change))
        if len(self._heap) > WORST:
            heapq.heappop(self._heap)

    def result(self) -> dict[str, Any]:
        """Return every number, JSON-able."""

        def table(what: str) -> dict[str, Any]:
            return {
                name: entry.as_dict() for (of, name), entry in self.counts.items() if of == what
            }

        sizes = table("size")
        return {
            "frames": self.frames, **self.counts.get(("all", ""), _Counts()).as_dict(),
            "threshold": self.threshold, "by_kind": self.kinds,
            "by_class": dict(sorted(table("class").items())),
            "by_size": {name: sizes[name] for name in SIZES if name in sizes},
            "run_keys_a": list(self.run_keys[0]), "run_keys_b": list(self.run_keys[1]),
            "uncertified_a": self.uncertified[0], "uncertified_b": self.uncertified[1],
            "mixed_versions_a": self.mixed[0], "mixed_versions_b": self.mixed[1],
            "changed_sequences": self.changed_sequences,
            "sequences_only_in_a": list(self.only_in_a),
            "sequences_only_in_b": list(self.only_in_b),
            "frames_only_in_a": self.frames_only_in_a, "frames_only_in_b": self.frames_only_in_b,
        }  # fmt: skip


def _box(one: LabeledFrame, row: int) -> tuple[float, float, float, float]:
    left, top, right, bottom = (float(value) for value in one.boxes.xyxy_px[row])
    return left, top, right, bottom


def _pairs(first: LabeledFrame, second: LabeledFrame) -> list[tuple[int, int]]:
    """Pair the instances of a frame: equal rows, else boxes that overlap, best first."""
    a, b = first.boxes.xyxy_px, second.boxes.xyxy_px
    if a.shape == b.shape and np.array_equal(a, b, equal_nan=True):
        return [(row, row) for row in range(len(a))]
    overlap = box_iou(a, b)
    pairs = []
    while overlap.size and overlap.max() >= SAME_BOX_IOU:
        row, column = np.unravel_index(int(overlap.argmax()), overlap.shape)
        pairs.append((int(row), int(column)))
        overlap[row], overlap[:, column] = -1, -1
    return pairs


def diff_runs(
    first: Side, second: Side, threshold: float, on_change: OnChange = lambda _: None
) -> Iterator[tuple[RunDiff, int, int]]:
    """Compare two runs, sequence by sequence.

    Yields:
        What was found so far, how many sequences are done, and how many both runs have.

    Raises:
        AutolabelError: a side has no labels, both are the same run, or they have no sequence or no
            frame in common.

    """
    sides = first.manifests(), second.manifests()
    common = sorted(sides[0].keys() & sides[1].keys())
    if not common:
        raise AutolabelError("the two runs have no sequence in common")
    same = [name for name in common if is_same(first, second, sides[0][name], sides[1][name])]
    if len(same) == len(common):
        raise AutolabelError(
            "both are the same run: name two runs of one storage as OUT#RUN_KEY (`autolabel label "
            "--json` tells the key)"
        )
    only = [tuple(sorted(one.keys() - set(common))) for one in sides]
    keys = tuple(tuple(sorted({one.stamp.run_key for one in side.values()})) for side in sides)
    uncertified = tuple(
        ", ".join(sorted(set(uncertified_runs(one.out_uri, side.values()).values())))
        for one, side in zip((first, second), sides, strict=True)
    )
    mixed = tuple({name: one.mixed for name, one in side.items() if one.mixed} for side in sides)
    found = RunDiff(threshold, run_keys=keys, uncertified=uncertified, mixed=mixed,
                    only_in_a=only[0], only_in_b=only[1], on_change=on_change)  # fmt: skip
    for done, name in enumerate(common, 1):
        found.add_sequence(name, first.frames(sides[0][name]), second.frames(sides[1][name]))
        yield found, done, len(common)
    if not found.frames:
        raise AutolabelError(
            f"the two runs have {counted(len(common), 'sequence')} in common, and no frame: their "
            "pictures are other files (copies, too), or other --frames. Label the same ones twice"
        )
