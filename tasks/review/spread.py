"""One decision for all frames of an object: what was decided on one of its labels, on the others.

In some frames a detector may have taken the object for another class. What was accepted says which
it is, and its other labels get that; what was rejected may have been so for its class, and only
labels of that class are. Labels that somebody has decided on stay as they are. A spread is an act
like any other: written to storage first, signed, and undone at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset.ids import sample_id
from tasks.dataset.reviewed_instances import detections_of
from tasks.dataset.schema import (
    MACHINE_FIELD,
    OBJECT_PATH,
    OPEN,
    REVIEWED_FIELD,
    sample_collection,
)
from tasks.review.actions import Chosen, accept, choose, delete, fix_class, reject
from tasks.review.events import ACCEPTED, CORRECTED, DELETED, REJECTED, Event
from tasks.review.objects import object_of

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
