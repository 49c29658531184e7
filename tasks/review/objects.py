"""Decisions that are worth taking: one for each object, on the riskiest label that it has.

An object is the same thing over time (`tasks.dataset.documents`): the riskiest of its labels stands
for all of them. What was decided on it can be spread to the rest. Beside a road, a detector may
find another car in every few metres of the same guard rail: objects of one class whose labels
overlap in the picture are of one place, and no place gets more than a share of the decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sam2_core.types import AutolabelError
from tasks.dataset.documents import detections_of, sample_id
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import LOG_FIELD, MACHINE_FIELD, OBJECT_PATH, OPEN, REVIEWED_FIELD
from tasks.review.actions import Chosen, accept, choose, delete, fix_class, reject
from tasks.review.events import ACCEPTED, CORRECTED, DELETED, REJECTED, Event
from tasks.risk.geometry import shared_box_areas

_INNER = f"{MACHINE_FIELD}.detections"
_FRAMES_BETWEEN_LOOKS = 64
_MOST_OF_A_PLACE = 0.1  # of the decisions
_CANDIDATES = 8  # objects looked at for each decision


@dataclass(frozen=True, order=True)
class Doubt:
    """The riskiest undecided label of an object.

    Attributes:
        risk: of the label.
        label_id: of the label.
        frame_key: its frame.
        object_name: its object.
        kind: sequence, camera and class.
        bounding_box: x, y, width, height, relative to the picture.

    """

    risk: float
    label_id: str
    frame_key: str
    object_name: str
    kind: tuple[str, str, str] = ("", "", "")
    bounding_box: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


def object_of(label: Mapping[str, Any]) -> str:
    """Name of a stored label's object; a label that was never linked is one of its own."""
    return str(label.get("object") or label["_id"])


def decided_objects(dataset: Any) -> set[str]:
    """Objects that somebody has decided on, by any of their labels."""
    fields = {f"{_INNER}._id": 1, f"{_INNER}.object": 1, f"{_INNER}.decision": 1}
    with_log = {f"{LOG_FIELD}.0": {"$exists": True}}
    return {
        object_of(label)
        for sample in sample_collection(dataset).find(with_log, fields)
        for label in detections_of(sample, MACHINE_FIELD)
        if label.get("decision")
    }


def few_of_each_place(doubts: Sequence[Doubt], count: int) -> list[Doubt]:
    """Choose `count` of doubts that come riskiest first; more of a place only if there is room."""
    most = max(1, round(_MOST_OF_A_PLACE * count))
    chosen: list[Doubt] = []
    rest: list[Doubt] = []
    taken: Counter[int] = Counter()
    for doubt, place in zip(doubts, _places(doubts), strict=True):
        taken[place] += 1
        (chosen if taken[place] <= most else rest).append(doubt)
    return sorted([*chosen, *rest][:count], reverse=True)


def _places(doubts: Sequence[Doubt]) -> list[int]:
    """Give each doubt's place a number: boxes of one kind overlap, or others do in between."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    if not doubts:
        return []
    rows: dict[tuple[str, str, str], list[int]] = {}
    for row, doubt in enumerate(doubts):
        rows.setdefault(doubt.kind, []).append(row)
    near = np.zeros((len(doubts), len(doubts)), np.bool_)
    for kind in rows.values():
        xywh = np.array([doubts[row].bounding_box for row in kind], np.float64)
        corners = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)
        near[np.ix_(kind, kind)] = shared_box_areas(corners, corners) > 0
    return [int(one) for one in connected_components(csr_array(near), directed=False)[1]]


def riskiest_objects(dataset: Any, decided: Collection[str], budget: int) -> list[Doubt]:
    """Find the riskiest objects that nobody has decided on, a few for each decision of a budget.

    A frame's risk is that of its riskiest undecided label and has an index: frames are read from
    the riskiest one on, until no other can have a label that belongs here.
    """
    count = _CANDIDATES * budget
    fields = {"frame_key": 1, "risk": 1, "sequence_id": 1, "camera": 1}
    names = ("_id", "object", "risk", "decision", "label", "bounding_box")
    fields |= {f"{_INNER}.{name}": 1 for name in names}
    found = sample_collection(dataset).find({"review_status": OPEN}, fields).sort("risk", -1)
    best: dict[str, Doubt] = {}
    for read, sample in enumerate(found):
        if read % _FRAMES_BETWEEN_LOOKS == 0 and len(best) >= count:
            limit = sample.get("risk") or 0.0
            if sum(one.risk > limit for one in best.values()) >= count:
                break
        for doubt in _doubts(sample):
            known = best.get(doubt.object_name)
            if doubt.object_name not in decided and (known is None or doubt > known):
                best[doubt.object_name] = doubt
    return sorted(best.values(), reverse=True)[:count]


def _doubts(sample: Mapping[str, Any]) -> list[Doubt]:
    where = (sample.get("sequence_id") or "", sample.get("camera") or "")
    return [
        Doubt(
            float(one["risk"]), str(one["_id"]), str(sample["frame_key"]), object_of(one),
            (*where, one.get("label") or ""), tuple(one.get("bounding_box") or (0.0,) * 4),
        )
        for one in detections_of(sample, MACHINE_FIELD)
        if not one.get("decision") and one.get("risk") is not None
    ]  # fmt: skip


def count_labels(dataset: Any, objects: Collection[str]) -> int:
    """Count the labels that objects have in all frames, those of a label that was never linked too.

    Reads the frames that have them through an index.
    """
    counted = sample_collection(dataset).aggregate([
        {"$match": {OBJECT_PATH: {"$in": sorted(objects)}}},
        {"$unwind": f"${_INNER}"},
        {"$match": {OBJECT_PATH: {"$in": sorted(objects)}}},
        {"$group": {"_id": f"${OBJECT_PATH}", "labels": {"$sum": 1}}},
    ])  # fmt: skip
    linked = {one["_id"]: int(one["labels"]) for one in counted}
    return sum(linked.get(name, 1) for name in objects)


_DECIDE: Mapping[str, Callable[[Any, Sequence[Chosen]], list[Event]]] = {
    ACCEPTED: accept, REJECTED: reject, DELETED: delete,
}  # fmt: skip


def spread(dataset: Any, chosen: Sequence[Chosen]) -> list[Event]:
    """Decide on the other undecided labels of the same objects as on these; return the events.

    Raises:
        AutolabelError: none of these labels is decided, or none of their objects has another label
            that is not; or their decision holds for one frame only.

    """
    rulings = {
        object_of(label): _ruling(dataset, frame, label)
        for frame in chosen
        for field, label in frame.labels
        if field == MACHINE_FIELD and label.get("decision")
    }
    if not rulings:
        raise AutolabelError("decide on a label first, then on the rest of its object")
    frames, labels = _undecided_of(dataset, rulings)
    events: list[Event] = []
    for ruling in sorted(set(rulings.values())):
        mine = {one: label for one, (name, label) in labels.items() if rulings[name] == ruling}
        events += _decide(dataset, frames, mine, *ruling)
    if not events:
        raise AutolabelError("these objects have no other label that is undecided")
    return events


def _ruling(dataset: Any, frame: Chosen, label: Mapping[str, Any]) -> tuple[str, str]:
    """Return what was decided on a label: the decision, and the class that the label has now."""
    decision = str(label["decision"])
    if decision in _DECIDE:
        return decision, str(label["label"])
    if decision == CORRECTED:
        wanted = {"_id": sample_id(frame.frame_key)}
        sample = sample_collection(dataset).find_one(wanted, {REVIEWED_FIELD: 1}) or {}
        for one in detections_of(sample, REVIEWED_FIELD):
            if str(label["_id"]) in one.get("sources", ()):
                return decision, str(one["label"])
    raise AutolabelError(f"what was {decision} in one frame cannot be spread to others")


def _decide(
    dataset: Any, frames: Sequence[str], labels: Mapping[str, str], decision: str, name: str
) -> list[Event]:
    """Decide on labels, given with their classes, as on one that is of class `name` now."""
    same = [one for one, label in labels.items() if label == name]
    others = [one for one, label in labels.items() if label != name]
    events: list[Event] = []
    if same:
        alike = ACCEPTED if decision == CORRECTED else decision
        events += _DECIDE[alike](dataset, choose(dataset, frames, same))
    if others and decision in {ACCEPTED, CORRECTED}:
        events += fix_class(dataset, choose(dataset, frames, others), name)
    return events


def _undecided_of(
    dataset: Any, objects: Mapping[str, Any]
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Find undecided labels of objects on open frames: samples' ids, label id -> object, class."""
    inner = f"{MACHINE_FIELD}.detections"
    fields = {f"{inner}.{name}": 1 for name in ("_id", "object", "decision", "label")}
    wanted = {OBJECT_PATH: {"$in": sorted(objects)}, "review_status": OPEN}
    frames: list[str] = []
    labels: dict[str, tuple[str, str]] = {}
    for sample in sample_collection(dataset).find(wanted, fields).sort("_id", 1):
        frames.append(str(sample["_id"]))
        labels |= {
            str(one["_id"]): (object_of(one), str(one["label"]))
            for one in detections_of(sample, MACHINE_FIELD)
            if object_of(one) in objects and not one.get("decision")
        }
    return frames, labels
