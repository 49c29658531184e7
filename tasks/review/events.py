"""What people decided, as events: written to storage first, then shown in FiftyOne.

An event is all that one action did to one frame, named by its address and its version. Replaying
a dataset's events in order gives every decision back, so the dataset can be dropped and rebuilt.
Those on frames that the dataset does not have, as they were, are set aside
(`tasks.review.set_aside`). Events are never changed or deleted.

What one call of `record` writes is one act, in one file. Taking it back is an event as well: an
event says what was there before it, so its inverse needs nothing else, and the inverse of an
inverse is the redo. People undo their own acts, newest first.
"""

from __future__ import annotations

import datetime
import getpass
import logging
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bson import ObjectId
from pydantic import ValidationError
from pymongo import UpdateMany, UpdateOne

from sam2_core.types import AutolabelError
from tasks.boxes.coco_json import wrong_value
from tasks.dataset.database import database_lock, show_stored
from tasks.dataset.documents import (
    Values,
    detections_of,
    log_of,
    override_document,
    override_of,
    sample_id,
    to_document,
    to_values,
    whole_document,
)
from tasks.dataset.layout import database, detections, sample_collection
from tasks.dataset.schema import (
    DONE,
    LOG_FIELD,
    MACHINE_FIELD,
    REVIEWED_FIELD,
    STATUS_FIELD,
    dataset_lock,
)
from tasks.review.event_rules import checked_event
from tasks.store import storage
from tasks.store.checksums import IncompleteArtifactError, decode_json, encode_json
from tasks.wording import counted

if TYPE_CHECKING:
    from tasks.review.actions import Chosen


log = logging.getLogger(__name__)
ACCEPTED, REJECTED, CORRECTED = "accepted", "rejected", "corrected"
ADDED = "added"  # what a person drew; stored as a correction of nothing
MERGED, DELETED, EDITED = "merged", "deleted", "edited"
# Actions of earlier versions, which had models make labels again.
NOT_READ = frozenset({"relabel", "relabeled"})
NOTHING_HERE = "nothing_here"  # an action, about all labels of a frame
WRONG = (REJECTED, CORRECTED, MERGED, DELETED, EDITED)
REVIEWER_VARIABLE = "AUTOLABEL_REVIEWER"
LEASE_S = 15.0  # writing takes milliseconds; who was killed meanwhile holds others up for so long
PATIENCE_S = 20.0
_UNREAD = "unread_decisions"


@dataclass(frozen=True)
class Event:
    """One action of one person on one frame.

    Attributes:
        event_id: unique.
        at: UTC time, ISO 8601, microseconds; the order of replay.
        by: who.
        action: accept, reject, fix_class, merge, delete, edit, add, remove, done, nothing_here,
            repair, follow, undo, redo.
        frame_key: the frame (`tasks.frames.identity.frame_key`); before there were such names its
            position, by which no frame can be told.
        frame: fields of its sample that say to people which one it is.
        run_key: run whose machine labels were decided on.
        model: its model, in one line.
        decisions: machine label id -> decision ("" takes one back).
        upserts: instances that are now in `reviewed`, as `dataset.documents` has them.
        removed: ids that are no longer in `reviewed`.
        overrides: machine label id -> what it is now that it was followed; a label that the
            frame lacks is added, and empty values take one away.
        changes: what changed, for people and statistics.
        status: new review status of the frame, "" for none.
        before: what takes it back, as `states_before` says; empty if nothing can.
        reverts: id of the event that this one takes back, "" for none.
        second_opinion: whether the person did not see what somebody else had decided before. It
            changes nothing: what the first one decided stands until somebody settles it.

    """

    frame_key: str
    action: str
    by: str = ""
    at: str = ""
    event_id: str = ""
    run_key: str = ""
    model: str = ""
    decisions: Mapping[str, str] = field(default_factory=dict)
    upserts: tuple[Mapping[str, Any], ...] = ()
    removed: tuple[str, ...] = ()
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    status: str = ""
    frame: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    reverts: str = ""
    second_opinion: bool = False

    def log_entry(self) -> dict[str, Any]:
        """Return what a sample keeps: all but its frame, its instances, and what was before."""
        entry = asdict(self)
        del entry["frame"], entry["before"]
        entry["upserts"] = [one["id"] for one in self.upserts]
        if self.second_opinion:  # in older logs there are some that did change labels
            entry |= {"opinions": self.decisions, "decisions": {}, "upserts": [], "removed": []}
        return entry


def reviewer() -> str:
    """Name of the person at this machine; `AUTOLABEL_REVIEWER` overrides the login name."""
    return os.environ.get(REVIEWER_VARIABLE) or getpass.getuser()


def now_text() -> str:
    """Time of an event, by the database's clock: events of two machines are in order, too."""
    now = database().command("hello")["localTime"].replace(tzinfo=datetime.UTC)
    return str(now.isoformat(timespec="microseconds"))


def reviews_uri(out_uri: str, dataset_name: str) -> str:
    """Folder of a dataset's reviews: one each, so no character that a name may have stands in."""
    return storage.join(out_uri, "reviews", re.sub(r"[^A-Za-z0-9._+-]", "~", dataset_name))


def storage_of(dataset: Any) -> str:
    """Return the storage that a dataset belongs to, where its reviews go; "" for none."""
    known: list[str] = dataset.info.get("out_uris", [])
    return known[-1] if known else ""  # several: an older version mixed them; reviews are there


def record(
    dataset: Any,
    events: Sequence[Event],
    *,
    reversible: bool = True,
    check: Callable[[], None] | None = None,
) -> list[Event]:
    """Write events to storage, then show them in the dataset; return them as recorded.

    Args:
        dataset: the dataset.
        events: of one act.
        reversible: whether they can be undone: not if they tell what the dataset shows already.
        check: raises an error if something has changed that the act was decided upon. Nobody else
            records anything between the check and the end.

    Raises:
        AutolabelError: storage cannot be written: nothing has changed then. Or the database does
            not answer: the events are in storage then, and the dataset does not show them yet.

    """
    if not events:
        return []
    # No name of a dataset has a colon, so this is no lock of another one's document.
    lock, what = f"review:{dataset.name}", f"decisions on '{dataset.name}'"
    with database_lock(lock, what, LEASE_S, PATIENCE_S):
        if check:
            check()
        earliest, by = _after_all(dataset, events), reviewer()
        at = max(now_text(), earliest)
        before = states_before(dataset, events) if reversible else [{} for _ in events]
        complete = [
            replace(one, at=max(one.at or at, earliest), by=one.by or by, before=held,
                    event_id=one.event_id or uuid.uuid4().hex)
            for one, held in zip(events, before, strict=True)
        ]  # fmt: skip
        out_uri = storage_of(dataset)
        if out_uri:
            name = f"{_file_time(at)}-{complete[0].event_id[:8]}.json"
            uri = storage.join(reviews_uri(out_uri, dataset.name), "events", name)
            content = {"dataset": dataset.name, "events": [asdict(one) for one in complete]}
            storage.write_bytes(uri, encode_json(content))
        show_stored(lambda: apply_events(dataset, complete))
        return complete


def _file_time(at: str) -> str:
    return at.replace(":", "").replace("+0000", "Z")


def _after_all(dataset: Any, events: Sequence[Event]) -> str:
    """Return the first time after all that was recorded on the same frames, "" for any.

    A clock that was set back, or that of another database, puts no decision before earlier ones.
    """
    wanted = {"_id": {"$in": [sample_id(event.frame_key) for event in events]}}
    found = sample_collection(dataset).find(wanted, {f"{LOG_FIELD}.at": 1})
    last = max((entry["at"] for sample in found for entry in log_of(sample)), default="")
    if not last:
        return ""
    after = datetime.datetime.fromisoformat(last) + datetime.timedelta(microseconds=1)
    return after.isoformat(timespec="microseconds")


def read_events(out_uri: str, dataset_name: str) -> list[Event]:
    """Read all events of a dataset, oldest first; those of `NOT_READ` are counted in the log.

    Raises:
        IncompleteArtifactError: a file cannot be read; says which, and what to do.

    """
    events, damaged = readable_events(out_uri, dataset_name)
    if damaged:
        raise damaged[0]
    return events


def readable_events(
    out_uri: str, dataset_name: str
) -> tuple[list[Event], list[IncompleteArtifactError]]:
    """Read events as `read_events` does; return what can be read, and why a file cannot."""
    files = storage.at_once(_read_or_why, event_uris(out_uri, dataset_name))
    whole = [file for file in files if isinstance(file, list)]
    events = [event for file in whole for event in file if event.action not in NOT_READ]
    if passed := sum(map(len, whole)) - len(events):
        log.warning(
            "decisions on '%s': %s of labels sent back to a model passed over, as this version "
            "sends none back; what was decided before and after them stands",
            dataset_name, counted(passed, "event"),
        )  # fmt: skip
    damaged = [file for file in files if isinstance(file, IncompleteArtifactError)]
    return sorted(events, key=lambda event: event.at), damaged


def _read_or_why(uri: str) -> list[Event] | IncompleteArtifactError:
    try:
        return read_file(uri)
    except IncompleteArtifactError as error:
        return error


def event_uris(out_uri: str, dataset_name: str) -> list[str]:
    """Return the addresses of a dataset's files of events, oldest first."""
    folder = storage.join(reviews_uri(out_uri, dataset_name), "events")
    names = [one for one in storage.list_names(folder) if one.endswith(".json") and one[0] != "."]
    return [storage.join(folder, name) for name in sorted(names)]


def reviewed_datasets(out_uri: str) -> list[str]:
    """Return the names of the datasets whose decisions a storage has."""
    # The one character of a dataset's name that its folder does not have is a space.
    folders = storage.list_folders(storage.join(out_uri, "reviews"))
    return [one.replace("~", " ") for one in folders]


def reviewed_sequences(out_uri: str) -> Counter[str]:
    """Count the frames of each sequence on which a decision stands, in any dataset of a storage.

    Raises:
        AutolabelError: a file is damaged; says which.

    """
    counts = Counter[str]()
    for dataset in reviewed_datasets(out_uri):
        stands: dict[tuple[str, str], dict[str, bool]] = {}  # by frame: label, instance or ""
        for event in read_events(out_uri, dataset):
            frame = stands.setdefault((event.frame.get("sequence_id", ""), event.frame_key), {})
            decisions = event.decisions.items()
            frame |= {label: bool(decision) for label, decision in decisions}
            frame |= dict.fromkeys(event.removed, False)
            frame |= {str(one["id"]): True for one in event.upserts}
            if event.status:
                frame[""] = event.status == DONE
        counts.update(sequence for (sequence, _), frame in stands.items() if any(frame.values()))
    return counts


def read_file(uri: str) -> list[Event]:
    """Read one file of events.

    Raises:
        IncompleteArtifactError: it is damaged, or holds what no event has.

    """
    try:
        # The first ones had no checksum, and decisions are worth reading all the same.
        values = decode_json(storage.read_bytes(uri), storage.redact(uri), sealed=False)
        return [_event(one) for one in values["events"]]
    except (IncompleteArtifactError, ValueError, LookupError, TypeError, AttributeError,
            OverflowError) as error:  # fmt: skip
        why = str(error)
        if not isinstance(error, IncompleteArtifactError):
            wrong = wrong_value(error) if isinstance(error, ValidationError) else repr(error)
            why = f"{storage.redact(uri)} is not a file of events: {wrong:.200}"
        raise IncompleteArtifactError(
            f"decisions that cannot be read: {why}; put a whole copy of that file in its place, or "
            "move it out of that folder to go on without them, then `autolabel review rebuild`"
        ) from error


def _event(values: Any) -> Event:
    if values.get("action") in NOT_READ:  # it had other values, and counts alone
        return Event(frame_key="", action=values["action"])
    known = checked_event(values)
    return Event(
        **{**known, "upserts": tuple(known["upserts"]), "removed": tuple(known["removed"])}
    )


def apply_events(dataset: Any, events: Iterable[Event]) -> None:
    """Show events in a dataset; one that is there already changes nothing.

    Events on frames that it does not have are set aside.
    """
    from tasks.review.set_aside import hold_events

    events, samples = list(events), sample_collection(dataset)
    wanted = list({sample_id(event.frame_key) for event in events})
    present = {one["_id"] for one in samples.find({"_id": {"$in": wanted}}, {"_id": 1})}
    writes, others = [], []
    for event in events:
        identity = sample_id(event.frame_key)
        if identity not in present:
            others.append(event)
            continue
        new = {"_id": identity, f"{LOG_FIELD}.event_id": {"$ne": event.event_id}}
        writes.append(UpdateOne(new, [{"$set": update_of(event)}, {"$set": {"risk": OPEN_RISK}}]))
    if writes:
        samples.bulk_write(writes, ordered=True)
        # As the frames have them now: of several events on a label the last one counts, and of one
        # that was there already, none.
        decided = {label for event in events for label in event.decisions}
        show_decisions(decisions_on(dataset, wanted, decided))
    hold_events(dataset, others, update_of)


_COLLECTIONS = r"^patches\."  # what FiftyOne calls the collections of generated patches


def show_decisions(decisions: Mapping[str, str]) -> None:
    """Show decisions (machine label id -> decision) in all patches that there are at the moment.

    A view of patches is a copy: without this it would show what was decided as undecided until
    FiftyOne makes the copy anew.
    """
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
    for name in database().list_collection_names(filter={"name": {"$regex": _COLLECTIONS}}):
        database()[name].bulk_write(writes, ordered=False)


def show_again(dataset: Any) -> None:
    """Show all decisions in storage again: a database that was killed forgets its last moment."""
    out_uri = storage_of(dataset)
    if out_uri:
        show_stored(lambda: replay(dataset, out_uri))


def replay(dataset: Any, out_uri: str) -> list[IncompleteArtifactError]:
    """Show all decisions in storage, and remember which files of them cannot be read.

    Returns:
        Why they cannot.

    """
    events, damaged = readable_events(out_uri, dataset.name)
    apply_events(dataset, events)
    told = [str(error) for error in damaged]
    if told != unread_decisions(dataset):
        with dataset_lock(dataset.name):
            dataset.reload()
            dataset.info[_UNREAD] = told
            dataset.save()
    return damaged


def unread_decisions(dataset: Any) -> list[str]:
    """Say of each file of decisions that the dataset was last built without why."""
    return list(dataset.info.get(_UNREAD, []))


def decisions_on(dataset: Any, ids: Sequence[Any], labels: Collection[str]) -> dict[str, str]:
    """Decisions on machine labels of samples, as stored: label id -> decision."""
    fields = {f"{MACHINE_FIELD}.detections.{name}": 1 for name in ("_id", "decision")}
    return {
        str(one["_id"]): one.get("decision") or ""
        for sample in sample_collection(dataset).find({"_id": {"$in": ids}}, fields)
        for one in detections_of(sample, MACHINE_FIELD)
        if str(one["_id"]) in labels
    }


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
    fields: dict[str, Any] = {
        "last_modified_at": datetime.datetime.now(datetime.UTC),
        LOG_FIELD: {
            "$concatArrays": [{"$ifNull": [f"${LOG_FIELD}", []]}, [{"$literal": event.log_entry()}]]
        },
    }
    if event.second_opinion:
        return fields
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
        fields["reviewed"] = detections({"$concatArrays": [kept, documents]})
    if event.status:
        fields["review_status"] = event.status
    return fields


def _changed_labels(event: Event) -> dict[str, Any]:
    """Merge decisions and new masks into the machine labels that they are about."""
    branches = []
    gone = [ObjectId(label) for label, values in event.overrides.items() if not values]
    for label in {**event.decisions, **event.overrides}:
        change: dict[str, Any] = {}
        if label in event.decisions:
            change["decision"] = event.decisions[label]
        if event.overrides.get(label):
            change |= override_document(event.overrides[label])
        is_it = {"$eq": ["$$this._id", ObjectId(label)]}
        branches.append({"case": is_it, "then": {"$literal": change}})
    changed = {"$switch": {"branches": branches, "default": {}}}
    labels = {"$ifNull": ["$detections.detections", []]}
    kept = {"$filter": {"input": labels, "cond": {"$not": [{"$in": ["$$this._id", gone]}]}}}
    own = {"$map": {"input": kept, "in": {"$mergeObjects": ["$$this", changed]}}}
    ids = {"$map": {"input": labels, "in": "$$this._id"}}
    added = []
    for label, values in event.overrides.items():
        if "object" in values:  # a whole label, which joins those of its run alone
            lacks = {"$not": [{"$in": [ObjectId(label), ids]}]}
            joins = {"$and": [{"$eq": ["$run_key", {"$literal": event.run_key}]}, lacks]}
            added.append({"$cond": [joins, [{"$literal": whole_document(values)}], []]})
    return {"$concatArrays": [own, *added]}


def states_before(dataset: Any, events: Sequence[Event]) -> list[Values]:
    """Return what takes each event back: decisions, upserts, removed, overrides and states.

    Empty for an event on a frame that the dataset does not have.
    """
    parts = [f"{MACHINE_FIELD}.detections.{name}" for name in ("_id", "decision")]
    machine = [MACHINE_FIELD] if any(event.overrides for event in events) else parts
    fields = (*machine, REVIEWED_FIELD, STATUS_FIELD, "metadata")
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
    held = {str(one["_id"]): one for one in machine}
    touched = {str(one["id"]) for one in event.upserts} | set(event.removed)
    reviewed = detections_of(sample, REVIEWED_FIELD)
    # What has no fingerprint was drawn in the App just now, and before that it was not there.
    there = [one for one in reviewed if str(one["_id"]) in touched and one.get("fingerprint")]
    return {
        "decisions": {
            label: held.get(label, {}).get("decision") or "" for label in event.decisions
        },
        "overrides": {
            label: override_of(held[label], size_hw) if label in held else {}
            for label in event.overrides
        },
        "upserts": [
            to_values(one, size_hw, reviewer=one.get("reviewer") or "",
                      reviewed_at=one.get("reviewed_at") or "")
            for one in there
        ],
        "removed": sorted(touched - {str(one["_id"]) for one in there}),
        "status": (sample.get(STATUS_FIELD) or "") if event.status else "",
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
        (where, label["_id"]): (label, sample)
        for sample in sample_collection(dataset).find(
            {"_id": {"$in": ids}}, {**fields, LOG_FIELD: 1}
        )
        for where in (MACHINE_FIELD, REVIEWED_FIELD)
        for label in detections_of(sample, where)
    }
    for where, label in (one for frame in frames for one in frame.labels):
        now, sample = stored.get((where, label["_id"]), (None, {}))
        if now is None:
            raise AutolabelError(
                f"{label.get('label')}: gone by now, by another page or person; press the key again"
            )
        if _state(now) != _state(label):
            raise AutolabelError(decided_by_now(label.get("label"), now, sample))


def decided_by_now(name: object, stored: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    """Say that somebody else, or another page, has decided on a label of a sample."""
    who = deciders(sample).get(str(stored["_id"])) or stored.get("reviewer") or "another person"
    decision = stored.get("decision") or "undecided"
    return f"{name}: {decision} by now, by {who}; that is shown from now on"


def deciders(sample: Mapping[str, Any]) -> dict[str, str]:
    """Return who has decided on machine labels of a sample: label id -> name."""
    return {label: one["by"] for one in standing_entries(sample) for label in one["decisions"]}


def _state(label: Mapping[str, Any]) -> tuple[object, object]:
    return label.get("decision") or "", label.get("reviewed_at") or ""


UNDO, REDO = "undo", "redo"


def undo(dataset: Any) -> list[Event]:
    """Take back the last act of this reviewer that stands; return the events that do it.

    Raises:
        AutolabelError: there is none, or somebody has decided on its labels since.

    """
    act = last_act(dataset)
    if act:
        return _revert(dataset, act, UNDO)
    raise AutolabelError("there is nothing to undo")


def last_act(dataset: Any) -> tuple[Event, ...]:
    """Return the last act of this reviewer that stands; empty where there is none."""
    acts = _acts_that_stand(dataset)
    return next((act for act in acts if act[0].action not in {UNDO, REDO} and act[0].before), ())


def redo(dataset: Any) -> list[Event]:
    """Do again what was undone last, if nothing was decided since; return the events that do it.

    Raises:
        AutolabelError: there is nothing to redo.

    """
    act = next((act for act in _acts_that_stand(dataset) if act[0].action != REDO), ())
    if act and act[0].action == UNDO:
        return _revert(dataset, act, REDO)
    raise AutolabelError("there is nothing to redo")


def _acts_that_stand(dataset: Any) -> Iterator[tuple[Event, ...]]:
    """Yield the acts of this reviewer that were not taken back, newest first."""
    out_uri, me = storage_of(dataset), reviewer()
    if not out_uri:
        raise AutolabelError("this dataset knows no storage, where decisions are kept")
    taken_back: set[str] = set()
    for uri in reversed(event_uris(out_uri, dataset.name)):
        act = _read(uri)
        if act and act[0].by == me and act[0].event_id not in taken_back:
            taken_back |= {event.reverts for event in act}
            yield act


def stored_event(dataset: Any, entry: Mapping[str, Any]) -> Event:
    """Return the event of an entry of a frame's log, with the masks that storage alone has."""
    uris = event_uris(storage_of(dataset), dataset.name)
    later = (one for one in uris if one.rpartition("/")[2] >= _file_time(entry["at"]))
    events = (event for uri in later for event in _read(uri))
    return next(event for event in events if event.event_id == entry["event_id"])


@lru_cache(maxsize=4096)  # files of events never change
def _read(uri: str) -> tuple[Event, ...]:
    return tuple(read_file(uri))


def _revert(dataset: Any, act: Sequence[Event], action: str) -> list[Event]:
    events = [_inverse(event, action) for event in act]
    return record(dataset, events, check=lambda: _refuse_later_decisions(dataset, act))


def _inverse(event: Event, action: str) -> Event:
    before = event.before
    return Event(
        event.frame_key, action, run_key=event.run_key, model=event.model, frame=event.frame,
        decisions=before["decisions"], upserts=tuple(before["upserts"]),
        removed=tuple(before["removed"]), status=before["status"],
        overrides=before.get("overrides", {}),
        changes={action: event.changes.get(UNDO, event.action)}, reverts=event.event_id,
        second_opinion=event.second_opinion,
    )  # fmt: skip


def _refuse_later_decisions(dataset: Any, act: Sequence[Event]) -> None:
    ids = list({sample_id(event.frame_key) for event in act})
    if sample_collection(dataset).count_documents({"_id": {"$in": ids}}) < len(ids):
        raise AutolabelError("a frame of this act is set aside: its decisions stay as they are")
    followed = (label for event in act for label in event.overrides)
    decided = dict.fromkeys(followed, "")  # as long as nobody has decided on it
    decided |= {label: what for event in act for label, what in event.decisions.items()}
    applied = {} if act[0].second_opinion else decided
    if not decisions_on(dataset, ids, applied).items() <= applied.items() or _others_since(
        dataset, ids, act[0], decided
    ):
        raise AutolabelError(
            "these labels have been decided on again since, by somebody else or by an edit"
        )


def _others_since(dataset: Any, ids: Sequence[Any], act: Event, labels: Collection[str]) -> bool:
    """Whether somebody else has decided on labels after an act, the same perhaps."""
    return any(
        entry["at"] > act.at and entry["by"] != act.by and set(labels) & said(entry).keys()
        for sample in sample_collection(dataset).find({"_id": {"$in": ids}}, {LOG_FIELD: 1})
        for entry in standing_entries(sample)
    )


def said(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return what an entry of a frame's log says of machine labels: decisions or opinions."""
    return {**(entry.get("decisions") or {}), **(entry.get("opinions") or {})}


def standing_entries(sample: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Entries of a frame's log that were not taken back, without those that did so."""
    kept: list[Mapping[str, Any]] = []
    cancelled: set[str] = set()
    for entry in reversed(log_of(sample)):
        if entry.get("event_id") in cancelled or entry["action"] in NOT_READ:
            continue
        if entry.get("reverts"):
            cancelled.add(entry["reverts"])
        else:
            kept.append(entry)
    return kept[::-1]
