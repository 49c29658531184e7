"""What a frame's labels were before an event: enough to take it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasks.dataset.ids import sample_id
from tasks.dataset.reviewed_instances import Values, detections_of, to_values
from tasks.dataset.schema import (
    MACHINE_FIELD,
    RELABEL_FIELD,
    REVIEWED_FIELD,
    STATUS_FIELD,
    sample_collection,
)

if TYPE_CHECKING:
    from tasks.review.events import Event


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
