"""Decisions on frames that are not there as they were: kept, told, and never taken for truth.

A frame that was rewritten, renamed or removed takes its sample out of the dataset. What people
decided on it stays here, as the sample that it was, and returns with that very frame: same address,
same content.

Before that, edits that somebody made with FiftyOne's own annotation tools become events like all
others (`harvest`). A load stamps what it writes with a fingerprint and a time; whatever differs
afterwards and is in no event was done by a person.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pymongo import ReplaceOne, UpdateOne

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
from tasks.dataset.layout import (
    database,
    dataset_id,
    default_slice_of,
    detections,
    group_element,
    image_metadata,
    sample_collection,
)
from tasks.dataset.schema import (
    DONE,
    GROUP_FIELD,
    LOG_FIELD,
    MACHINE_FIELD,
    OPEN,
    REVIEWED_FIELD,
    SHARE_FIELD,
)
from tasks.frames.identity import file_version
from tasks.review.actions import FRAME, frame_of, labels_of
from tasks.review.events import (
    DELETED,
    EDITED,
    Event,
    now_text,
    record,
    reviewer,
    standing_entries,
)
from tasks.store import storage
from tasks.wording import counted

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


COLLECTION = "autolabel_set_aside"
# Why: another content at the address; no file there; not among the frames that were labeled last.
CHANGED, GONE, UNLISTED = "changed", "gone", "unlisted"
WHY = {
    CHANGED: "their picture has changed", GONE: "their picture is gone",
    UNLISTED: "their frame, or this version of it, is not among those last labeled",
}  # fmt: skip
# What a sample holds that is people's and not a load's.
PEOPLES = ("tags", "review_status", LOG_FIELD, REVIEWED_FIELD, SHARE_FIELD)
_DECIDED = {
    "$or": [
        {f"{LOG_FIELD}.0": {"$exists": True}},
        {f"{REVIEWED_FIELD}.detections.0": {"$exists": True}},
        {"review_status": {"$nin": [OPEN, None]}}, {"tags.0": {"$exists": True}},
    ]
}  # fmt: skip
# What says of which content of which file a sample is.
VERSION = {"filepath": 1, "frame_uri": 1, "frame_etag": 1}
_BATCH = 500


@dataclass(frozen=True)
class SetAside:
    """How much is set aside.

    Attributes:
        frames: frames with something that people did.
        labels: labels that they decided on.
        why: frames by reason.

    """

    frames: int
    labels: int
    why: Mapping[str, int]

    def text(self) -> str:
        """Say it in words; "" where there is nothing."""
        if not self.frames:
            return ""
        reasons = "; ".join(
            f"{count}: {WHY.get(why, WHY[UNLISTED])}" for why, count in self.why.items()
        )
        decisions, frames = counted(self.labels, "decision"), counted(self.frames, "frame")
        return (
            f"{decisions} on {frames} {'is' if self.labels == 1 else 'are'} set aside ({reasons})"
        )


def last_decisions(sample: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the last decision on each machine label, "" for undecided again, and who and when."""
    last: dict[str, tuple[str, dict[str, str]]] = {}
    for entry in log_of(sample):
        who = {"reviewer": entry.get("by") or "", "reviewed_at": entry.get("at") or ""}
        last |= {label: (what, who) for label, what in (entry.get("decisions") or {}).items()}
    return last


def finishing(sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of the log by which a frame is done; empty where it is not."""
    entries = standing_entries(sample) if sample.get("review_status") == DONE else []
    return next((one for one in reversed(entries) if one.get("status") == DONE), {})


def count_set_aside(dataset: Any) -> SetAside:
    """Count what people did on frames that are not in the dataset as they were."""
    labels, why = 0, Counter[str]()
    for one in _collection().find({**_mine(dataset), **_DECIDED}, {LOG_FIELD: 1, "aside": 1}):
        labels += sum(bool(decision) for decision, _ in last_decisions(one).values())
        reason = one["aside"]["why"]
        why[reason if reason in WHY else UNLISTED] += 1  # older versions told more apart
    return SetAside(sum(why.values()), labels, dict(sorted(why.items())))


def set_aside(dataset: Any, ids: Sequence[Any], why: str, keep_all: bool = False) -> int:
    """Take samples out of a dataset, and keep those that people did something with.

    Args:
        dataset: the dataset.
        ids: of samples; edits that are in no event yet are recorded first.
        why: one of `WHY`.
        keep_all: keep the others too: they may come back as they are.

    Returns:
        How many samples are kept.

    """
    samples, kept = sample_collection(dataset), 0
    for start in range(0, len(ids), _BATCH):
        some = list(ids[start : start + _BATCH])
        harvest(dataset, some)
        wanted = {"_id": {"$in": some}} if keep_all else {"_id": {"$in": some}, **_DECIDED}
        kept += _keep(samples.find(wanted), why)
        samples.delete_many({"_id": {"$in": some}})
    return kept


def _keep(samples: Iterable[Mapping[str, Any]], why: str) -> int:
    at = datetime.datetime.now(datetime.UTC)
    writes = []
    for one in samples:
        identity = _identity(one["_dataset_id"], one["_id"])
        kept = {**one, "_id": identity, "aside": {"why": why, "at": at}}
        writes.append(ReplaceOne({"_id": identity}, kept, upsert=True))
    _write(writes)
    return len(writes)


def hold_events(dataset: Any, events: Sequence[Any], update: Any) -> None:
    """Keep events whose frames the dataset does not have.

    Args:
        dataset: the dataset.
        events: of `tasks.review.events`.
        update: makes the change of a sample that an event is.

    """
    at, writes = datetime.datetime.now(datetime.UTC), []
    for event in events:
        identity = _identity(dataset_id(dataset), sample_id(event.frame_key))
        height, width = next((one["size_hw"] for one in event.upserts), (0, 0))
        first = {
            "_dataset_id": dataset_id(dataset), "frame_key": event.frame_key, "tags": [],
            "review_status": OPEN, LOG_FIELD: [],
            "metadata": image_metadata((int(height), int(width))),
            REVIEWED_FIELD: detections([]),
            "aside": {"why": UNLISTED, "at": at}, **event.frame,
        }  # fmt: skip
        writes.append(UpdateOne({"_id": identity}, {"$setOnInsert": first}, upsert=True))
        new = {"_id": identity, f"{LOG_FIELD}.event_id": {"$ne": event.event_id}}
        writes.append(UpdateOne(new, [{"$set": update(event)}]))
    _write(writes, ordered=True)


def _write(writes: Sequence[Any], *, ordered: bool = False) -> None:
    if writes:
        _collection().create_index("_dataset_id")
        _collection().bulk_write(writes, ordered=ordered)


def peoples_fields(dataset: Any, ids: Sequence[Any]) -> dict[Any, dict[str, Any]]:
    """Return what people did, by sample id, for samples that are coming back."""
    wanted = {"_id": {"$in": [_identity(dataset_id(dataset), one) for one in ids]}}
    return {
        one["_id"]["sample"]: {name: one[name] for name in PEOPLES if name in one}
        for one in _collection().find(wanted, dict.fromkeys(PEOPLES, 1))
    }


def forget(dataset: Any, ids: Iterable[Any]) -> None:
    """Forget what was kept of samples that are in the dataset again."""
    wanted = [_identity(dataset_id(dataset), one) for one in ids]
    if wanted:
        _collection().delete_many({"_id": {"$in": wanted}})


def set_aside_unlisted(dataset: Any, sequence_id: str, listed: set[Any]) -> int:
    """Set aside samples of a sequence that are not among `listed` ids; return how many went."""
    found = sample_collection(dataset).find({"sequence_id": sequence_id}, {"_id": 1})
    others = [one["_id"] for one in found if one["_id"] not in listed]
    set_aside(dataset, others, UNLISTED)
    # What waits for a file to come back is no longer waited for.
    waiting = _collection().find({**_waiting(dataset), "sequence_id": sequence_id}, {"_id": 1})
    stale = [one["_id"] for one in waiting if one["_id"]["sample"] not in listed]
    if stale:
        wanted = {"_id": {"$in": stale}}
        _collection().update_many(wanted, {"$set": {"aside.why": UNLISTED}})
        _collection().delete_many({**wanted, "$nor": _DECIDED["$or"]})
    return len(others)


def compare_files(dataset: Any) -> SetAside:
    """Set aside samples whose file on this machine is not as it was; take back those that are.

    Files that were fetched from elsewhere are stored by their content and cannot change.
    """
    _take_back(dataset)
    set_aside_changed(dataset)
    return count_set_aside(dataset)


def set_aside_changed(dataset: Any, ids: Sequence[Any] | None = None) -> int:
    """Set aside those samples (of all, when None) whose file is not as it was; return how many."""
    wanted: dict[str, Any] = {"frame_etag": {"$exists": True}}
    if ids is not None:
        wanted["_id"] = {"$in": list(ids)}
    found: dict[str, list[Any]] = {CHANGED: [], GONE: []}
    for one in sample_collection(dataset).find(wanted, VERSION):
        why = difference(one)
        if why:
            found[why].append(one["_id"])
    return sum(set_aside(dataset, some, why, keep_all=True) for why, some in found.items())


def _take_back(dataset: Any) -> None:
    """Put samples back whose file is again what it was."""
    samples, default = sample_collection(dataset), default_slice_of(dataset)
    for one in _collection().find(_waiting(dataset)):
        if "filepath" not in one or difference(one):
            continue
        identity = one["_id"]
        sample = {name: value for name, value in one.items() if name != "aside"}
        sample["_id"] = identity["sample"]
        if default and GROUP_FIELD not in sample:
            sample[GROUP_FIELD] = group_element(sample["_id"], sample["camera"] or default)
        change = {"$setOnInsert": {k: v for k, v in sample.items() if k != "_id"}}
        samples.update_one({"_id": sample["_id"]}, change, upsert=True)
        _collection().delete_one({"_id": identity})


def difference(sample: Mapping[str, Any]) -> str:
    """Say whether a local frame's file is `CHANGED` or `GONE`; "" where it is as it was."""
    uri, etag = sample.get("frame_uri") or "", sample.get("frame_etag") or ""
    path = Path(sample["filepath"])
    if not storage.is_local(uri) or path != storage.local_path(uri):
        return ""  # a copy that belongs to the content
    version = file_version(path)
    if version is None:
        return GONE
    return "" if etag in {"", version} else CHANGED


def _waiting(dataset: Any) -> dict[str, Any]:
    return {**_mine(dataset), "aside.why": {"$in": [CHANGED, GONE]}}


def _mine(dataset: Any) -> dict[str, Any]:
    return {"_dataset_id": dataset_id(dataset)}


def _identity(dataset_id: Any, sample: Any) -> dict[str, Any]:
    return {"dataset": dataset_id, "sample": sample}


def _collection() -> Any:
    return database()[COLLECTION]
