"""Events and samples: one atomic change, what takes it back, and what came between."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sam2_core.types import AutolabelError
from tasks.dataset.ids import sample_id
from tasks.dataset.reviewed_instances import Values, detections_of, to_values
from tasks.dataset.schema import (
    LOG_FIELD,
    MACHINE_FIELD,
    RELABEL_FIELD,
    REVIEWED_FIELD,
    STATUS_FIELD,
    sample_collection,
)

if TYPE_CHECKING:
    from tasks.review.actions import Chosen
    from tasks.review.events import Event

# A frame's risk is that of its riskiest label that nobody has decided on.
OPEN_RISK = {
    "$max": {
        "$concatArrays": [
            [0.0],
            {
                "$map": {
                    "input": {"$ifNull": ["$detections.detections", []]},
                    "in": {"$cond": [{"$eq": ["$$this.decision", ""]}, "$$this.risk", 0.0]},
                }
            },
        ]
    }
}


def update_of(event: Event) -> dict[str, Any]:
    """Build one atomic change of a sample: decisions, reviewed instances, log, states."""
    from bson import ObjectId

    from tasks.dataset.reviewed_instances import to_document

    fields: dict[str, Any] = {
        "last_modified_at": datetime.datetime.now(datetime.UTC),
        LOG_FIELD: {
            "$concatArrays": [{"$ifNull": [f"${LOG_FIELD}", []]}, [{"$literal": event.log_entry()}]]
        },
    }
    if event.decisions or event.overrides:
        fields["detections.detections"] = _changed_labels(event)
    gone = [ObjectId(one["id"]) for one in event.upserts] + [ObjectId(i) for i in event.removed]
    if gone:
        kept = {
            "$filter": {
                "input": {"$ifNull": ["$reviewed.detections", []]},
                "cond": {"$not": [{"$in": ["$$this._id", gone]}]},
            }
        }
        documents = [{"$literal": to_document(one)} for one in event.upserts]
        fields["reviewed"] = {
            "_cls": "Detections", "detections": {"$concatArrays": [kept, documents]}
        }  # fmt: skip
    if event.status:
        fields["review_status"] = event.status
    if event.relabel is not None:
        fields["relabel"] = event.relabel
    return fields


def _changed_labels(event: Event) -> dict[str, Any]:
    """Merge decisions and relabeled masks into the machine labels that they are about."""
    from bson import ObjectId

    from tasks.dataset.reviewed_instances import override_document

    branches = []
    for label in {**event.decisions, **event.overrides}:
        change: dict[str, Any] = {}
        if label in event.decisions:
            change["decision"] = event.decisions[label]
        if label in event.overrides:
            change |= override_document(event.overrides[label])
        is_it = {"$eq": ["$$this._id", ObjectId(label)]}
        branches.append({"case": is_it, "then": {"$literal": change}})
    changed = {"$switch": {"branches": branches, "default": {}}}
    labels = {"$ifNull": ["$detections.detections", []]}
    return {"$map": {"input": labels, "in": {"$mergeObjects": ["$$this", changed]}}}


def states_before(dataset: Any, events: Sequence[Event]) -> list[Values]:
    """Return decisions, upserts, removed, status and relabel that take each event back.

    Empty for an event on a frame that the dataset does not have.
    """
    fields = (
        f"{MACHINE_FIELD}.detections._id", f"{MACHINE_FIELD}.detections.decision",
        REVIEWED_FIELD, STATUS_FIELD, RELABEL_FIELD, "metadata",
    )  # fmt: skip
    ids = [sample_id(event.frame_key) for event in events]
    found = sample_collection(dataset).find({"_id": {"$in": ids}}, dict.fromkeys(fields, 1))
    samples = {one["_id"]: one for one in found}
    return [
        _before(samples[identity], event) if identity in samples else {}
        for identity, event in zip(ids, events, strict=True)
    ]


def _before(sample: Mapping[str, Any], event: Event) -> Values:
    metadata = sample.get("metadata") or {}
    size_hw = (int(metadata.get("height") or 0), int(metadata.get("width") or 0))
    machine = detections_of(sample, MACHINE_FIELD)
    held = {str(one["_id"]): one.get("decision") or "" for one in machine}
    touched = {str(one["id"]) for one in event.upserts} | set(event.removed)
    reviewed = detections_of(sample, REVIEWED_FIELD)
    there = [one for one in reviewed if str(one["_id"]) in touched]
    return {
        "decisions": {label: held.get(label, "") for label in event.decisions},
        "upserts": [
            to_values(one, size_hw, reviewer=one.get("reviewer") or "",
                      reviewed_at=one.get("reviewed_at") or "")
            for one in there
        ],
        "removed": sorted(touched - {str(one["_id"]) for one in there}),
        "status": (sample.get(STATUS_FIELD) or "") if event.status else "",
        "relabel": (sample.get(RELABEL_FIELD) or "") if event.relabel is not None else None,
    }  # fmt: skip


def refuse_changed_labels(dataset: Any, frames: Sequence[Chosen]) -> None:
    """Compare labels with what is stored by now.

    Raises:
        AutolabelError: a label is gone, or something else was decided on it.

    """
    fields = {f"{MACHINE_FIELD}.detections.{name}": 1 for name in ("_id", "decision")}
    fields |= {
        f"{REVIEWED_FIELD}.detections.{name}": 1 for name in ("_id", "decision", "reviewed_at")
    }
    ids = [sample_id(frame.frame_key) for frame in frames]
    stored = {
        (field, label["_id"]): label
        for sample in sample_collection(dataset).find({"_id": {"$in": ids}}, fields)
        for field in (MACHINE_FIELD, REVIEWED_FIELD)
        for label in detections_of(sample, field)
    }
    for field, label in (one for frame in frames for one in frame.labels):
        now = stored.get((field, label["_id"]))
        if now is None:
            raise AutolabelError(
                f"{label.get('label')}: gone by now, by another page or person; press the key again"
            )
        if _state(now) != _state(label):
            raise AutolabelError(decided_by_now(label.get("label"), now))


def decided_by_now(name: object, stored: Mapping[str, Any]) -> str:
    """Say that somebody else has decided on a label."""
    return (
        f"{name}: {stored.get('decision') or 'undecided'} by now, by another page or person; that "
        "is shown from now on"
    )


def _state(label: Mapping[str, Any]) -> tuple[object, object]:
    return label.get("decision") or "", label.get("reviewed_at") or ""
