"""Undo and redo through the event log: taking a decision back is an event as well.

What one call of `record` wrote is one act, one file. An event says what was there before it, so its
inverse needs nothing else; the inverse of an inverse is the redo. People undo their own acts,
newest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset.documents import sample_id
from tasks.dataset.schema import sample_collection
from tasks.review.events import (
    Event,
    decisions_on,
    event_uris,
    read_file,
    record,
    reviewer,
    storage_of,
)

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
        removed=tuple(before["removed"]), status=before["status"], relabel=before["relabel"],
        changes={action: event.changes.get(UNDO, event.action)}, reverts=event.event_id,
    )  # fmt: skip


def _refuse_later_decisions(dataset: Any, act: Sequence[Event]) -> None:
    ids = list({sample_id(event.frame_key) for event in act})
    if sample_collection(dataset).count_documents({"_id": {"$in": ids}}) < len(ids):
        raise AutolabelError("a frame of this act is set aside: its decisions stay as they are")
    decided = {label: what for event in act for label, what in event.decisions.items()}
    if not decisions_on(dataset, ids, decided).items() <= decided.items():
        raise AutolabelError(
            "these labels have been decided on again since, by somebody else or by an edit"
        )
