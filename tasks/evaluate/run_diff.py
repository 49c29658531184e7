"""What would change, or did, between two runs over the same frames: instance by instance.

Also the page of `autolabel diff --report`: tables, pictures of the largest changes, what to redo.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rlemasklib import RLEMask

from sam2_core.mask_geometry import SIZES, mask_iou, size_class
from sam2_core.redaction import one_line
from sam2_core.trust.calibration import write_difference
from sam2_core.types import AutolabelError
from tasks.dataset.recorded_frames import Pictures, find_pictures
from tasks.evaluate.metrics import box_iou
from tasks.export.run import uncertified_runs
from tasks.export.types import Instance
from tasks.frames.images import read_image
from tasks.risk.geometry import best_pairs
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.store.manifests import Manifest, labels_of, list_manifests, list_runs, newest_of
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef
from tasks.wording import counted, markdown_table, plain

CHANGED = "changed.txt"
CHANGES = "changes.jsonl"
# What a report is known by.
PAGE, MARK = "diff.md", "# What changed"


def change_line(change: Change) -> str:
    """Say a change of an instance as a line of JSON."""
    frame = change.frame
    return json.dumps({
        "sequence": frame.sequence_id, "camera": frame.camera, "frame": frame.index,
        "uri": frame.uri, "kind": change.kind, "label": change.instance.label,
        "iou": round(change.iou, 4), "area_px": change.instance.area_px,
        "box_xyxy_px": [round(side, 2) for side in change.instance.box_xyxy_px],
    }) + "\n"  # fmt: skip


def not_in_both(result: dict[str, Any]) -> list[str]:
    """Say in lines what only one of the runs has."""
    lines = [] if result["instances"] else ["no frame has an instance: nothing is compared"]
    for side in "ab":
        names, frames = result[f"sequences_only_in_{side}"], result[f"frames_only_in_{side}"]
        if names or frames:
            some = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
            counts = "a change" if side == "a" else "not compared"
            lines.append(
                f"only in {result[f'run_{side}']}: {counted(len(names), 'sequence')}{some} and "
                f"{counted(frames, 'frame')} of sequences that both have: {counts}"
            )
    return lines


def uncertified(result: dict[str, Any]) -> list[str]:
    """Say in lines which labels were made with --allow-uncertified, or by mixed versions."""
    return [
        f"{result[f'run_{side}']} was labeled with --allow-uncertified; its certificate said: "
        f"{result[f'uncertified_{side}']}"
        for side in "ab"
        if result[f"uncertified_{side}"]
    ] + [
        f"{name} in {result[f'run_{side}']} was labeled by libraries of several versions: {which}"
        for side in "ab"
        for name, which in result[f"mixed_versions_{side}"].items()
    ]


def write_report(folder: Path, result: dict[str, Any], found: RunDiff) -> None:
    """Write what differs, pictures of the largest changes, and the list of changed sequences."""
    folder.mkdir(parents=True, exist_ok=True)
    names = "".join(f"{name}\n" for name in result["changed_sequences"])
    (folder / CHANGED).write_text(names, encoding="utf-8")
    (folder / "diff.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for old in folder.glob("change-[0-9][0-9].png"):
        old.unlink()
    lines = [
        MARK, "", f"{plain(result['run_a'])} and {plain(result['run_b'])}", "",
        f"{counted(result['frames'], 'frame')}, {counted(result['instances'], 'instance')}, "
        f"{result['changed']} changed ({kinds_of(result)}); "
        f"{counted(len(result['changed_sequences']), 'sequence')} with a change, listed in "
        f"`{CHANGED}`; every change of an instance is in `{CHANGES}`.", "",
        *(f"{plain(line)}\n" for line in (*uncertified(result), *not_in_both(result))),
    ]  # fmt: skip
    lines += markdown_table(COLUMNS, rows_of(result))
    lines += [
        "The largest changes, by (1 - IoU) times the root of the area. Green: both. Red: first run "
        "only. Blue: second run only.", "",
    ] if found.worst else []  # fmt: skip
    pictures = find_pictures([change.frame for change in found.worst])
    for number, change in enumerate(found.worst, 1):
        name = f"change-{number:02d}.png"
        told = _drawn(folder / name, change, pictures)
        place = (change.frame.sequence_id, change.frame.camera, str(change.frame.index))
        where = " ".join(filter(None, place))
        lines += [f"![{change.kind}]({name})" if not told else plain(f"({told})"), ""]
        lines += [
            f"{plain(f'{where}: {change.instance.label}')}, {change.kind}, IoU {change.iou:.3f}",
            "",
        ]
    (folder / PAGE).write_text("\n".join(lines), encoding="utf-8")


def kinds_of(result: dict[str, Any]) -> str:
    """Say how many changes of each kind there are."""
    counts = (f"{count} {kind}" for kind, count in result["by_kind"].items() if count)
    return ", ".join(counts) or "none"


COLUMNS = ("instances", "count", "changed", "mean IoU", "predicted IoU")


def rows_of(result: dict[str, Any]) -> list[list[str]]:
    """Return a row of texts of all instances, each size and each class."""
    rows = []
    for name, one in ({"all": result} | result["by_size"] | result["by_class"]).items():
        iou = "" if one["miou"] is None else f"{one['miou']:.4f}"
        gain = "" if one["predicted_iou_gain"] is None else f"{one['predicted_iou_gain']:+.4f}"
        rows.append([one_line(name), str(one["instances"]), str(one["changed"]), iou, gain])
    return rows


def _drawn(path: Path, change: Change, pictures: Pictures) -> str:
    """Draw a change; returns why not, "" where it is drawn."""
    uri, picture = change.frame.uri, pictures.of(change.frame)
    if uri in pictures.changed:
        return "its picture has changed since it was labeled"
    if picture is None:
        return f"its picture cannot be had: {storage.redact(uri)}"
    pixels = read_image(replace(change.frame, local_path=str(picture)))
    nothing = bytes(RLEMask.zeros(pixels.shape[:2]).to_dict()["counts"])
    masks = [one or nothing for one in change.rle]
    write_difference(path, pixels, masks[0], masks[1], np.array(change.instance.box_xyxy_px))
    return ""


# Camera, index, version.
FrameKey = tuple[str, int, str]


@dataclass(frozen=True)
class Side:
    """One of the two runs.

    Attributes:
        out_uri: its storage.
        run_key: which run there, "" for each sequence's newest.
        keys: (sequence_id, content_key) of the sequences that count; None: all.

    """

    out_uri: str
    run_key: str = ""
    keys: frozenset[tuple[str, str]] | None = None

    @staticmethod
    def parse(text: str) -> Side:
        """Read `OUT` or `OUT#RUN_KEY`."""
        out, _, key = text.rpartition("#")
        if out and re.fullmatch(r"[0-9a-f]{20}", key):
            return Side(checked(out), key)
        return Side(checked(text))

    def manifests(self) -> dict[str, Manifest]:
        """Return the labeled sequences by id.

        Raises:
            AutolabelError: there is none; it names the runs that are there.

        """
        with storage.explained("read", self.out_uri):
            listed = list_manifests(self.out_uri, self.run_key)
            there = newest_of(one for one in listed if self.keys is None or one.key in self.keys)
            if not there:
                raise AutolabelError(self._nothing())
            return {name: one.read(self.out_uri) for name, one in sorted(there.items())}

    def _nothing(self) -> str:
        of_run = f" of run {self.run_key}" if self.run_key else ""
        out, _, key = self.out_uri.rpartition("#")
        place = self.out_uri if self.run_key else out
        known = list_runs(place) if place else []
        runs = f"; the runs of {storage.redact(place)} are {', '.join(known)}" if known else ""
        taken = f" ({key!r} is no whole key)" if known and not self.run_key else ""
        return f"{storage.redact(self.out_uri)} holds no labeled sequence{of_run}{taken}{runs}"

    def frames(self, manifest: Manifest) -> dict[FrameKey, LabeledFrame]:
        """Return a sequence's labels by what tells a frame in both runs: camera, index, version."""
        return {
            (one.frame.camera, one.frame.index, one.frame.etag): one
            for chunk in manifest.chunks
            for one in labels_of(self.out_uri, manifest, chunk)
        }


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
        instance: in the first run, or in the second where it is new.
        iou: of the two masks, 0 where there is but one.
        rle: its masks in both runs, b"" where there is none.

    """

    kind: str
    frame: FrameRef
    instance: Instance
    iou: float
    rle: tuple[bytes, bytes]

    @property
    def weight(self) -> float:
        """How much changed: (1 - IoU) times the root of the area."""
        return (1 - self.iou) * float(np.sqrt(self.instance.area_px + 1))


OnChange = Callable[[Change], object]


def _means(sums: Mapping[str, float]) -> dict[str, Any]:
    """Return counts of instances and means over those that both runs have."""
    matched = sums.get("matched")
    return {
        "instances": sums.get("instances", 0), "changed": sums.get("changed", 0),
        "miou": round(sums["iou"] / matched, 4) if matched else None,
        "predicted_iou_gain": round(sums["gain"] / matched, 4) + 0.0 if matched else None,
    }  # fmt: skip


@dataclass
class RunDiff:
    """Adds up what two runs differ in.

    Attributes:
        threshold: masks of a lower IoU are changed.
        facts: of both runs, see `diff_runs`; part of the result.
        on_change: called with every change of an instance.
        worst: the largest changes, the largest first.
        changed: sequences in which anything changed.
        frames: how many were compared.
        only_in_a, only_in_b: frames of common sequences that one run alone has, or has of another
            version of the picture; those of the first are changes.

    """

    threshold: float
    facts: Mapping[str, Any]
    on_change: OnChange = lambda _: None
    worst: list[Change] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    frames: int = 0
    only_in_a: int = 0
    only_in_b: int = 0
    _sums: defaultdict[tuple[str, str], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    _kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def add_sequence(
        self, name: str, first: dict[FrameKey, LabeledFrame], second: dict[FrameKey, LabeledFrame]
    ) -> None:
        """Compare a sequence of both runs."""
        for key in sorted(first.keys() & second.keys()):
            self._frame(first[key], second[key])
        lost = len(first.keys() - second.keys())
        self.only_in_a += lost
        self.only_in_b += len(second.keys() - first.keys())
        self._note("frame", name, lost)

    def _frame(self, first: LabeledFrame, second: LabeledFrame) -> None:
        self.frames += 1
        one, other = _instances(first), _instances(second)
        if one is None or other is None:
            self._note("frame", first.frame.sequence_id, int(one is not other))
            return
        for a, b in _pairs(first, second):
            self._instance(
                first.frame, None if a is None else one[a], None if b is None else other[b]
            )

    def _instance(self, frame: FrameRef, one: Instance | None, other: Instance | None) -> None:
        """Compare an instance, or count one that a run alone has."""
        shown = one or other
        assert shown is not None  # noqa: S101 - a pair is of one at least
        iou, gain, kind = 0.0, 0.0, "gone" if one else "new"
        if one and other:
            iou = 1.0 if one.rle == other.rle else mask_iou(one.rle, other.rle, frame.size_hw)
            gain = other.predicted_iou - one.predicted_iou
            kind = self._kind(one, other, iou)
        size = size_class(shown.area_px)
        for key in (("all", ""), ("class", shown.label), ("size", size)):
            matched = int(bool(one and other))
            found: Any = {"matched": matched, "changed": int(bool(kind)), "iou": iou, "gain": gain}
            self._sums[key].update(found, instances=1)
        if kind:
            rle = one.rle if one else b"", other.rle if other else b""
            change = Change(kind, frame, shown, iou, rle)
            self._note(kind, frame.sequence_id)
            self.on_change(change)
            largest = sorted([*self.worst, change], key=lambda one: one.weight, reverse=True)
            self.worst = largest[:WORST]

    def _kind(self, one: Instance, other: Instance, iou: float) -> str:
        """Name what changed, "" where nothing did; an empty mask is none."""
        if bool(one.area_px) != bool(other.area_px):
            return "gone" if one.area_px else "new"
        if iou < self.threshold:
            return "mask"
        if one.label != other.label:
            return "class"
        return (
            "score" if abs(other.predicted_iou - one.predicted_iou) > PREDICTED_IOU_CHANGE else ""
        )

    def _note(self, kind: str, sequence: str, count: int = 1) -> None:
        self._kinds[kind] += count
        if count:
            self.changed.add(sequence)

    def result(self) -> dict[str, Any]:
        """Return every number, JSON-able."""

        def table(what: str) -> dict[str, Any]:
            return {name: _means(sums) for (of, name), sums in self._sums.items() if of == what}

        sizes = table("size")
        return {
            "frames": self.frames, **_means(self._sums["all", ""]),
            "threshold": self.threshold, "by_kind": self._kinds,
            "by_class": dict(sorted(table("class").items())),
            "by_size": {name: sizes[name] for name in SIZES if name in sizes},
            "changed_sequences": sorted({*self.changed, *self.facts["sequences_only_in_a"]}),
            "frames_only_in_a": self.only_in_a, "frames_only_in_b": self.only_in_b, **self.facts,
        }  # fmt: skip


def _instances(one: LabeledFrame) -> list[Instance] | None:
    """Return a frame's labels, None where it could not be labeled."""
    if one.masks is None:
        return None
    masks, boxes = one.masks, one.boxes.xyxy_px.astype(float).tolist()
    return [
        Instance(
            label, float(one.boxes.scores[row]), tuple(boxes[row]), masks.rle[row],
            int(masks.area_px[row]), predicted_iou=float(masks.predicted_iou[row]),
        )
        for row, label in enumerate(one.boxes.labels)
    ]  # fmt: skip


def _pairs(first: LabeledFrame, second: LabeledFrame) -> list[tuple[int | None, int | None]]:
    """Pair the instances of a frame: equal rows, else boxes that overlap, best first.

    Rows that one frame alone has follow, with None.
    """
    a, b = first.boxes.xyxy_px, second.boxes.xyxy_px
    if a.shape == b.shape and np.array_equal(a, b, equal_nan=True):
        return [(row, row) for row in range(len(a))]
    overlap = box_iou(a, b)
    rows = np.nonzero(overlap >= SAME_BOX_IOU)
    pairs = best_pairs(overlap[rows], *rows)
    gone = [row for row in range(len(a)) if row not in pairs]
    new = [row for row in range(len(b)) if row not in pairs.values()]
    return [*pairs.items(), *((row, None) for row in gone), *((None, row) for row in new)]


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
    keys = [[side[name].stamp.labels_key for name in common] for side in sides]
    if keys[0] == keys[1] and storage.absolute(first.out_uri) == storage.absolute(second.out_uri):
        raise AutolabelError(
            "both are the same run: name two runs of one storage as OUT#RUN_KEY (`autolabel label "
            "--json` tells the key)"
        )
    facts = {
        f"{name}_{letter}": value
        for letter, side, there in zip("ab", (first, second), sides, strict=True)
        for name, value in _facts(side, there, common).items()
    }
    found = RunDiff(threshold, facts, on_change)
    for done, name in enumerate(common, 1):
        found.add_sequence(name, first.frames(sides[0][name]), second.frames(sides[1][name]))
        yield found, done, len(common)
    if not found.frames:
        raise AutolabelError(
            f"the two runs have {counted(len(common), 'sequence')} in common, and no frame: their "
            "pictures are other files (copies, too), or other --frames. Label the same ones twice"
        )


def _facts(side: Side, manifests: dict[str, Manifest], common: list[str]) -> dict[str, Any]:
    """Return what a run is.

    Returns:
        `run_keys` of the labels that are compared; `uncertified`: what the certificates said of
        labels that were made with --allow-uncertified, else ""; `mixed_versions` of libraries that
        labeled a sequence, by its name; `sequences_only_in` this run.

    """
    said = uncertified_runs(side.out_uri, manifests.values()).values()
    return {
        "run_keys": sorted({one.stamp.run_key for one in manifests.values()}),
        "uncertified": ", ".join(sorted(set(said))),
        "mixed_versions": {name: one.mixed for name, one in manifests.items() if one.mixed},
        "sequences_only_in": sorted(manifests.keys() - set(common)),
    }
