"""Samples as the App shows them: patches led back to their frames, labels drawn anew.

In a view of patches every tile is one label. Such a view has samples of its own, in a dataset that
FiftyOne generates: a sample's id is that of its label, and `_sample_id` names the frame. People
decide there as in a view of frames: ids are led back to the frames, and decisions are shown in
every generated dataset that has the label.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bson import ObjectId
from pymongo import UpdateMany

from tasks.dataset.documents import detections_of, sample_id
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import MACHINE_FIELD, REVIEWED_FIELD
from tasks.review.events import Event

_COLLECTIONS = r"^patches\."  # what FiftyOne calls the collections of generated patches


def is_patches(view: Any) -> bool:
    """Whether the samples of a view are labels."""
    from fiftyone.core.patches import EvaluationPatchesView, PatchesView

    return isinstance(view, (PatchesView, EvaluationPatchesView))


def frames_of(view: Any, sample_ids: Sequence[str]) -> dict[str, str]:
    """Lead sample ids of a view back to the frames: id -> id of the frame's sample, in order.

    Ids that are those of frames already stay as they are, and so do all ids of a view of frames.
    """
    found: dict[str, str] = {}
    if is_patches(view):
        from bson import ObjectId

        wanted = {"_id": {"$in": [ObjectId(one) for one in sample_ids]}}
        patches = sample_collection(view._patches_dataset)
        found = {
            str(one["_id"]): str(one["_sample_id"])
            for one in patches.find(wanted, {"_sample_id": 1})
        }
    return {one: found.get(one, one) for one in map(str, sample_ids)}


def labels_of_patches(view: Any, sample_ids: Sequence[str]) -> list[str]:
    """Label ids of patches: one each, or those that an evaluation has put together."""
    found: list[str] = []
    for field in view._label_fields:
        _, path = view._get_label_field_path(field)
        found += view.select(list(sample_ids)).values(f"{path}.id", unwind=True)
    return [str(one) for one in found if one]


def show_decisions(decisions: Mapping[str, str]) -> None:
    """Show decisions (machine label id -> decision) in all patches that there are at the moment.

    A view of patches is a copy: without this it would show what was decided as undecided until
    FiftyOne makes the copy anew.
    """
    from fiftyone.core.odm import get_db_conn

    if not decisions:
        return
    by_decision: dict[str, list[Any]] = {}
    for label, decision in decisions.items():
        by_decision.setdefault(decision, []).append(ObjectId(label))
    has_it = {f"{MACHINE_FIELD}.decision": {"$exists": True}}
    writes = [
        UpdateMany(
            {"_id": {"$in": labels}, **has_it}, {"$set": {f"{MACHINE_FIELD}.decision": decision}}
        )
        for decision, labels in by_decision.items()
    ]
    database = get_db_conn()
    for name in database.list_collection_names(filter={"name": {"$regex": _COLLECTIONS}}):
        database[name].bulk_write(writes, ordered=False)


SHOWN = ("risk", "reasons", "review_status", "relabel")


def redrawn(dataset: Any, events: Sequence[Event]) -> dict[str, Any]:
    """Return what events changed, by sample id, as the App's own samples are written.

    `labels` has the labels by field, `gone` the ids of those that are no more, `values` the frame's
    other fields.
    """
    wanted: dict[Any, set[str]] = {}
    for event in events:
        made = {str(one["id"]) for one in event.upserts}
        changed = {*event.decisions, *event.overrides, *event.removed} | made
        wanted.setdefault(sample_id(event.frame_key), set()).update(changed)
    return labels_as_stored(dataset, wanted)


def labels_as_stored(dataset: Any, wanted: Mapping[Any, Collection[str]]) -> dict[str, Any]:
    """Return the same of labels by their samples' ids, whatever has happened to them."""
    from fiftyone.core.json import stringify

    projection = dict.fromkeys((MACHINE_FIELD, REVIEWED_FIELD, *SHOWN), 1)
    found = sample_collection(dataset).find({"_id": {"$in": list(wanted)}}, projection)
    return {str(one["_id"]): stringify(_change(one, wanted[one["_id"]])) for one in found}


def _change(sample: Mapping[str, Any], touched: Collection[str]) -> dict[str, Any]:
    labels = {
        field: [one for one in detections_of(sample, field) if str(one["_id"]) in touched]
        for field in (MACHINE_FIELD, REVIEWED_FIELD)
    }
    present = {str(one["_id"]) for rows in labels.values() for one in rows}
    values = {name: sample[name] for name in SHOWN if name in sample}
    return {"labels": labels, "gone": sorted(set(touched) - present), "values": values}
