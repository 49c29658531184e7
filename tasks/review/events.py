"""What people decided, as events: written to storage first, then shown in FiftyOne.

An event is all that one action did to one frame, named by its address and its version. Replaying
a dataset's events in order gives every decision back, so the dataset can be dropped and rebuilt.
Those on frames that the dataset does not have, as they were, are set aside
(`tasks.review.set_aside`). Events are never changed or deleted.
"""

from __future__ import annotations

import datetime
import getpass
import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset.database_access import database_lock, show_stored
from tasks.dataset.ids import sample_id
from tasks.dataset.reviewed_instances import detections_of
from tasks.dataset.schema import LOG_FIELD, MACHINE_FIELD, sample_collection
from tasks.review.sample_changes import OPEN_RISK, states_before, update_of
from tasks.store import storage
from tasks.store.checksums import decode_json, encode_json

log = logging.getLogger(__name__)
ACCEPTED, REJECTED, CORRECTED = "accepted", "rejected", "corrected"
MERGED, DELETED, EDITED, RELABEL = "merged", "deleted", "edited", "relabel"
WRONG = (REJECTED, CORRECTED, MERGED, DELETED, EDITED)
LEASE_S = 15.0  # writing takes milliseconds; who was killed meanwhile holds others up for so long
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Event:
    """One action of one person on one frame.

    Attributes:
        event_id: unique.
        at: UTC time, ISO 8601, microseconds; the order of replay.
        by: who.
        action: accept, reject, fix_class, merge, delete, edit, add, remove, relabel, relabeled,
            done, repair, undo, redo.
        frame_key: the frame, as `FrameIdentity.key` names it; before there were such names its
            position, by which no frame can be told.
        frame: fields of its sample that say to people which one it is.
        run_key: run whose machine labels were decided on.
        model: its model, in one line.
        decisions: machine label id -> decision ("" takes one back).
        upserts: instances that are now in `reviewed`, as `dataset.reviewed_instances` has them.
        removed: ids that are no longer in `reviewed`.
        overrides: machine label id -> what a relabeling made of it.
        changes: what changed, for people and statistics.
        status: new review status of the frame, "" for none.
        relabel: new relabel state of the frame, None for no change.
        before: what takes it back, as `states_before` says; empty if nothing can.
        reverts: id of the event that this one takes back, "" for none.

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
    relabel: str | None = None
    frame: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    reverts: str = ""

    def log_entry(self) -> dict[str, Any]:
        """Return what a sample keeps: all but its frame, its instances, and what was before."""
        entry = asdict(self)
        del entry["frame"], entry["before"]
        entry["upserts"] = [one["id"] for one in self.upserts]
        return entry


def reviewer() -> str:
    """Name of the person at this machine; `AUTOLABEL_REVIEWER` overrides the login name."""
    import os

    return os.environ.get("AUTOLABEL_REVIEWER") or getpass.getuser()


def now_text() -> str:
    """Time of an event."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


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
        return _record(dataset, events, reversible)


def _record(dataset: Any, events: Sequence[Event], reversible: bool) -> list[Event]:
    at, by = now_text(), reviewer()
    before = states_before(dataset, events) if reversible else [{} for _ in events]
    complete = [
        replace(one, at=one.at or at, by=one.by or by, before=held,
                event_id=one.event_id or uuid.uuid4().hex)
        for one, held in zip(events, before, strict=True)
    ]  # fmt: skip
    out_uri = storage_of(dataset)
    if out_uri:
        name = f"{at.replace(':', '').replace('+0000', 'Z')}-{complete[0].event_id[:8]}.json"
        uri = storage.join(reviews_uri(out_uri, dataset.name), "events", name)
        content = {"dataset": dataset.name, "events": [asdict(one) for one in complete]}
        storage.write_bytes(uri, encode_json(content))
    show_stored(lambda: apply_events(dataset, complete))
    return complete


def read_events(out_uri: str, dataset_name: str) -> list[Event]:
    """Read all events of a dataset, oldest first.

    Raises:
        AutolabelError: a file is damaged; says which.

    """
    folder = storage.join(reviews_uri(out_uri, dataset_name), "events")
    names = [one for one in storage.list_names(folder) if one.endswith(".json") and one[0] != "."]
    files = [read_file(storage.join(folder, name)) for name in sorted(names)]
    return sorted((event for file in files for event in file), key=lambda event: event.at)


def read_file(uri: str) -> list[Event]:
    """Read one file of events.

    Raises:
        AutolabelError: it is damaged.

    """
    try:
        # The first ones had no checksum, and decisions are worth reading all the same.
        values = decode_json(storage.read_bytes(uri), storage.redact(uri), sealed=False)
        return [_event(one) for one in values["events"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AutolabelError(f"{storage.redact(uri)} is not a file of events: {error!r}") from error


def _event(values: Mapping[str, Any]) -> Event:
    known = {name: values[name] for name in Event.__dataclass_fields__ if name in values}
    return Event(
        **{**known, "upserts": tuple(known["upserts"]), "removed": tuple(known["removed"])}
    )


def apply_events(dataset: Any, events: Iterable[Event]) -> None:
    """Show events in a dataset; one that is there already changes nothing.

    Events on frames that it does not have are set aside.
    """
    from pymongo import UpdateOne

    from tasks.review.app_samples import show_decisions
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


def show_again(dataset: Any) -> None:
    """Show all decisions in storage again: a database that was killed forgets its last moment."""
    out_uri = storage_of(dataset)
    if out_uri:
        show_stored(lambda: apply_events(dataset, read_events(out_uri, dataset.name)))


def decisions_on(dataset: Any, ids: Sequence[Any], labels: Collection[str]) -> dict[str, str]:
    """Decisions on machine labels of samples, as stored: label id -> decision."""
    fields = {f"{MACHINE_FIELD}.detections.{name}": 1 for name in ("_id", "decision")}
    return {
        str(one["_id"]): one.get("decision") or ""
        for sample in sample_collection(dataset).find({"_id": {"$in": ids}}, fields)
        for one in detections_of(sample, MACHINE_FIELD)
        if str(one["_id"]) in labels
    }
