"""Decisions that are worth taking: one for each object, on the riskiest label that it has.

An object is the same thing over time (`tasks.dataset.objects`): the riskiest of its labels stands
for all of them. What was decided on it can be spread to the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.dataset.schema import LOG_FIELD, MACHINE_FIELD, OBJECT_PATH, OPEN, sample_collection

_INNER = f"{MACHINE_FIELD}.detections"
_FRAMES_BETWEEN_LOOKS = 64


@dataclass(frozen=True, order=True)
class Doubt:
    """The riskiest undecided label of an object.

    Attributes:
        risk: of the label.
        label_id: of the label.
        frame_key: its frame.
        object_name: its object.

    """

    risk: float
    label_id: str
    frame_key: str
    object_name: str


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
        for label in labels_of_sample(sample)
        if label.get("decision")
    }


def riskiest_objects(dataset: Any, count: int) -> list[Doubt]:
    """Find the `count` riskiest objects that nobody has decided on, riskiest first.

    A frame's risk is that of its riskiest undecided label and has an index: frames are read from
    the riskiest one on, until no other can have a label that belongs here.
    """
    decided = decided_objects(dataset)
    fields = {"frame_key": 1, "risk": 1}
    fields |= {f"{_INNER}.{name}": 1 for name in ("_id", "object", "risk", "decision")}
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


def labels_of_sample(sample: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the machine labels of a stored sample."""
    return (sample.get(MACHINE_FIELD) or {}).get("detections") or ()


def _doubts(sample: Mapping[str, Any]) -> list[Doubt]:
    return [
        Doubt(float(one["risk"]), str(one["_id"]), str(sample["frame_key"]), object_of(one))
        for one in labels_of_sample(sample)
        if not one.get("decision") and one.get("risk") is not None
    ]


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
