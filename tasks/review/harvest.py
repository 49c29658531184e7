"""Edits made with FiftyOne's own annotation tools, turned into events like all others.

The App lets people draw, change and delete labels directly. A load stamps what it writes with a
fingerprint and a time; whatever differs afterwards and is in no event was done by a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tasks.dataset.documents import (
    Values,
    detections_of,
    fingerprint,
    label_id,
    log_of,
    reviewed_id,
    sample_id,
    to_values,
)
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import LOG_FIELD, MACHINE_FIELD, REVIEWED_FIELD
from tasks.review.actions import FRAME, frame_of, labels_of
from tasks.review.events import DELETED, EDITED, Event, now_text, record, reviewer
from tasks.review.set_aside import last_decisions

_EDITED_LATER = {
    "$expr": {"$ne": ["$last_modified_at", {"$ifNull": ["$loaded_at", "$created_at"]}]}
}


def harvest(dataset: Any, ids: Sequence[Any] | None = None) -> list[Event]:
    """Find edits that are in no event yet, and record them.

    Args:
        dataset: the dataset.
        ids: samples to look at; by default all that changed since they were loaded.

    """
    wanted: dict[str, Any] = dict(_EDITED_LATER)
    if ids is not None:
        wanted["_id"] = {"$in": list(ids)}
    projection = {**FRAME, "instances": 1, MACHINE_FIELD: 1, REVIEWED_FIELD: 1, LOG_FIELD: 1}
    collection = sample_collection(dataset)
    events = []
    for sample in collection.find(wanted, projection):
        event = _edits_of(sample)
        if event is not None:
            events.append(event)
    recorded = record(dataset, events, reversible=False)
    for event in recorded:
        _stamp_machine_labels(collection, event)
    return recorded


def _edits_of(sample: Mapping[str, Any]) -> Event | None:
    frame = frame_of(sample)
    at, by = now_text(), reviewer()
    upserts: dict[str, Values] = {}
    reviewed = detections_of(sample, REVIEWED_FIELD)
    for field, label in labels_of(sample):  # the reviewed ones last: of two edits theirs counts
        stamped = label.get("fingerprint")
        if stamped == fingerprint(label) or not label.get("bounding_box"):
            continue
        mine = field == REVIEWED_FIELD
        identity = str(label["_id"]) if mine else str(reviewed_id(str(label["_id"])))
        sources = list(label.get("sources") or []) if mine else [str(label["_id"])]
        changed = "edited in the App" if stamped else "drawn in the App"
        upserts[identity] = to_values(
            label, frame.size_hw, id=identity, sources=sources, decision=EDITED, reviewer=by,
            reviewed_at=at, changed=changed,
        )  # fmt: skip
    present = {str(one["_id"]) for one in reviewed} | set(upserts)
    gone = {one: of for one, of in _known_reviewed(sample).items() if one not in present}
    decisions = dict.fromkeys([*_missing(sample), *chain(*gone.values())], DELETED)
    for one in upserts.values():
        decisions |= dict.fromkeys(one["sources"], EDITED)
    if not upserts and not gone and not decisions:
        return None
    changes = {
        identity: {"label": one["label"], "changed": one["changed"], "reasons": []}
        for identity, one in upserts.items()
    }
    return frame.event(
        "edit" if upserts else "remove", upserts=tuple(upserts.values()),
        removed=tuple(sorted(gone)), decisions=decisions, changes=changes, at=at, by=by,
    )  # fmt: skip


def _known_reviewed(sample: Mapping[str, Any]) -> dict[str, list[str]]:
    """Ids that should be in `reviewed` as far as the log goes, and the machine labels of each."""
    known: dict[str, list[str]] = {}
    for entry in log_of(sample):
        decided = list(entry.get("decisions") or ())
        for identity in entry.get("removed") or ():
            known.pop(identity, None)
        for identity in entry.get("upserts") or ():
            alone = [one for one in decided if str(reviewed_id(one)) == identity]
            merged = decided and str(reviewed_id(*decided)) == identity
            known[identity] = alone or (decided if merged else known.get(identity, []))
    return known


def _missing(sample: Mapping[str, Any]) -> list[str]:
    """Machine labels that a load wrote, that nobody has decided on, and that are gone."""
    stored = sample.get(MACHINE_FIELD)
    if stored is None or not sample.get("run_key"):
        return []
    present = {str(one["_id"]) for one in stored.get("detections") or []}
    decided = {one for one, (decision, _) in last_decisions(sample).items() if decision}
    written = (
        str(label_id(sample["frame_key"], sample["run_key"], index))
        for index in range(int(sample.get("instances") or 0))
    )
    return [one for one in written if one not in present | decided]


def _stamp_machine_labels(collection: Any, event: Event) -> None:
    """Remember that the edits of machine labels have been seen."""
    sample = collection.find_one({"_id": sample_id(event.frame_key)}, {MACHINE_FIELD: 1})
    for label in detections_of(sample or {}, MACHINE_FIELD):
        if str(label["_id"]) in event.decisions:
            collection.update_one(
                {"_id": sample["_id"], f"{MACHINE_FIELD}.detections._id": label["_id"]},
                {"$set": {f"{MACHINE_FIELD}.detections.$.fingerprint": fingerprint(label)}},
            )
