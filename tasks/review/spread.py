"""One decision for all frames of an object: what was decided on one of its labels, on the others.

Labels that somebody has decided on stay as they are. A spread is an act like any other: written to
storage first, signed, and undone at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset.ids import sample_id
from tasks.dataset.schema import (
    MACHINE_FIELD,
    OBJECT_PATH,
    OPEN,
    REVIEWED_FIELD,
    sample_collection,
)
from tasks.review.actions import Chosen, accept, choose, delete, fix_class, reject
from tasks.review.events import ACCEPTED, CORRECTED, DELETED, REJECTED, Event
from tasks.review.objects import labels_of_sample, object_of

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
        ids = [one for one, name in labels.items() if rulings[name] == ruling]
        if ids:
            events += _decide(dataset, choose(dataset, frames, ids), *ruling)
    if not events:
        raise AutolabelError("these objects have no other label that is undecided")
    return events


def _ruling(dataset: Any, frame: Chosen, label: Mapping[str, Any]) -> tuple[str, str]:
    """Return what was decided on a label: the decision, and the class if it was corrected."""
    decision = str(label["decision"])
    if decision in _DECIDE:
        return decision, ""
    if decision == CORRECTED:
        wanted = {"_id": sample_id(frame.frame_key)}
        sample = sample_collection(dataset).find_one(wanted, {REVIEWED_FIELD: 1}) or {}
        for one in (sample.get(REVIEWED_FIELD) or {}).get("detections") or ():
            if str(label["_id"]) in one.get("sources", ()):
                return decision, str(one["label"])
    raise AutolabelError(f"what was {decision} in one frame cannot be spread to others")


def _decide(dataset: Any, chosen: Sequence[Chosen], decision: str, name: str) -> list[Event]:
    if decision == CORRECTED:
        return fix_class(dataset, chosen, name)
    return _DECIDE[decision](dataset, chosen)


def _undecided_of(dataset: Any, objects: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Find undecided labels of objects on open frames: the samples' ids, label id -> object."""
    inner = f"{MACHINE_FIELD}.detections"
    fields = {f"{inner}.{name}": 1 for name in ("_id", "object", "decision")}
    wanted = {OBJECT_PATH: {"$in": sorted(objects)}, "review_status": OPEN}
    frames: list[str] = []
    labels: dict[str, str] = {}
    for sample in sample_collection(dataset).find(wanted, fields).sort("_id", 1):
        frames.append(str(sample["_id"]))
        labels |= {
            str(one["_id"]): object_of(one)
            for one in labels_of_sample(sample)
            if object_of(one) in objects and not one.get("decision")
        }
    return frames, labels
