"""Two people, or two pages, that decide on a label at the same moment: one does, the other is told.

Between the look at a label and the event on it another process may have written one. So whatever is
recorded is compared with what is stored, once more, under a lock that all processes share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sam2_core.types import AutolabelError
from tasks.dataset.ids import sample_id
from tasks.dataset.locks import database_lock
from tasks.dataset.reviewed_instances import detections_of
from tasks.dataset.schema import MACHINE_FIELD, REVIEWED_FIELD, sample_collection

if TYPE_CHECKING:
    from tasks.review.actions import Chosen

LEASE_S = 15.0  # writing takes milliseconds; who was killed meanwhile holds others up for so long
PATIENCE_S = 20.0


@contextlib.contextmanager
def one_at_a_time(dataset: Any) -> Iterator[None]:
    """Let nobody else record decisions on a dataset meanwhile.

    Raises:
        AutolabelError: somebody else does so all the time.

    """
    # No name of a dataset has a colon, so this is no lock of another one's document.
    what = f"decisions on '{dataset.name}'"
    with database_lock(f"review:{dataset.name}", what, LEASE_S, PATIENCE_S):
        yield


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
        (field, label["_id"]): label
        for sample in sample_collection(dataset).find({"_id": {"$in": ids}}, fields)
        for field in (MACHINE_FIELD, REVIEWED_FIELD)
        for label in detections_of(sample, field)
    }
    for field, label in (one for frame in frames for one in frame.labels):
        now = stored.get((field, label["_id"]))
        if now is None:
            raise AutolabelError(
                f"{label.get('label')}: gone by now, by another page or person; press the key again"
            )
        if _state(now) != _state(label):
            raise AutolabelError(decided_by_now(label.get("label"), now))


def decided_by_now(name: object, stored: Mapping[str, Any]) -> str:
    """Say that somebody else has decided on a label."""
    return (
        f"{name}: {stored.get('decision') or 'undecided'} by now, by another page or person; that "
        "is shown from now on"
    )


def _state(label: Mapping[str, Any]) -> tuple[object, object]:
    return label.get("decision") or "", label.get("reviewed_at") or ""
