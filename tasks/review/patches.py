"""Patches: FiftyOne's views in which every tile is one label, cut out of its frame.

Such a view has samples of its own, in a dataset that FiftyOne generates: a sample's id is that of
its label, and `_sample_id` names the frame. People decide there as in a view of frames: ids are led
back to the frames, and decisions are shown in every generated dataset that has the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.dataset.schema import MACHINE_FIELD

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
        patches = _collection(view._patches_dataset._sample_collection_name)
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
    from bson import ObjectId
    from pymongo import UpdateMany

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
    if not writes:
        return
    for name in _database().list_collection_names(filter={"name": {"$regex": _COLLECTIONS}}):
        _collection(name).bulk_write(writes, ordered=False)


def _database() -> Any:
    import fiftyone.core.odm as foo

    return foo.get_db_conn()


def _collection(name: str) -> Any:
    return _database()[name]
