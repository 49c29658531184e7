"""What the App needs to draw labels anew after events, without opening their frame again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tasks.dataset.ids import sample_id
from tasks.dataset.reviewed_instances import detections_of
from tasks.dataset.schema import MACHINE_FIELD, REVIEWED_FIELD, sample_collection
from tasks.review.events import Event

SHOWN = ("risk", "reasons", "review_status", "relabel")


def redrawn(dataset: Any, events: Sequence[Event]) -> dict[str, Any]:
    """Return what events changed, by sample id, as the App's own samples are written.

    `labels` has the labels by field, `gone` the ids of those that are no more, `values` the frame's
    other fields.
    """
    wanted: dict[Any, set[str]] = {}
    for event in events:
        wanted.setdefault(sample_id(event.frame_key), set()).update(_touched(event))
    return _as_shown(dataset, wanted)


def as_stored(dataset: Any, sample: str, label: str) -> dict[str, Any]:
    """Return the same of one machine label, whatever has happened to it."""
    from bson import ObjectId

    return _as_shown(dataset, {ObjectId(sample): {label}})


def _as_shown(dataset: Any, wanted: Mapping[Any, Collection[str]]) -> dict[str, Any]:
    from fiftyone.core.json import stringify

    projection = dict.fromkeys((MACHINE_FIELD, REVIEWED_FIELD, *SHOWN), 1)
    found = sample_collection(dataset).find({"_id": {"$in": list(wanted)}}, projection)
    return {str(one["_id"]): stringify(_change(one, wanted[one["_id"]])) for one in found}


def _touched(event: Event) -> set[str]:
    changed = {*event.decisions, *event.overrides, *event.removed}
    return changed | {str(one["id"]) for one in event.upserts}


def _change(sample: Mapping[str, Any], touched: Collection[str]) -> dict[str, Any]:
    labels = {
        field: [one for one in detections_of(sample, field) if str(one["_id"]) in touched]
        for field in (MACHINE_FIELD, REVIEWED_FIELD)
    }
    present = {str(one["_id"]) for rows in labels.values() for one in rows}
    values = {name: sample[name] for name in SHOWN if name in sample}
    return {"labels": labels, "gone": sorted(set(touched) - present), "values": values}
