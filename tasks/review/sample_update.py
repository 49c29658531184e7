"""An event as one atomic change of a sample in FiftyOne's database."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from tasks.dataset.schema import LOG_FIELD

if TYPE_CHECKING:
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
