"""Undo and redo: events like all others, so storage, dataset, statistics and exports agree."""

from pathlib import Path
from typing import Any

import pytest

from sam2_core.types import AutolabelError
from tasks.dataset import schema
from tasks.load.into_fiftyone import rebuild
from tasks.review.actions import accept, reject
from tasks.review.events import read_events, redo, undo
from tasks.review.stats import review_stats
from tests.review.reviewed import decide_everything, decided_labels, pick, state


def shown(name: str) -> list:
    """Decisions and reviewed instances, without the log that only grows."""
    return [frame[:-1] for frame in state(name)]


def test_every_act_can_be_undone_and_done_again(name: str, out: Path) -> None:
    dataset, before = schema.open_dataset(name), shown(name)
    decide_everything(name)
    decided, acts = shown(name), 7
    for _ in range(acts):
        undo(dataset)
    assert shown(name) == before
    assert review_stats(dataset).decided == 0
    assert review_stats(dataset).by_reviewer == {}
    assert decided_labels(name) == []
    with pytest.raises(AutolabelError, match="nothing to undo"):
        undo(dataset)
    for _ in range(acts - 1):
        redo(dataset)
    undo(dataset)
    redo(dataset)
    redo(dataset)
    assert shown(name) == decided, "whatever the way there"
    with pytest.raises(AutolabelError, match="nothing to redo"):
        redo(dataset)
    events = [event.action for event in read_events(str(out), name)]
    assert (events.count("undo") > acts, events.count("accept")) == (True, 1), "nothing is deleted"
    rebuild(name, str(out))
    assert shown(name) == decided, "storage says the same"


@pytest.mark.parametrize("again", [reject, accept])  # otherwise, or the same
def test_only_ones_own_acts_are_undone_and_none_that_somebody_else_decided_on_since(
    name: str, monkeypatch: pytest.MonkeyPatch, again: Any
) -> None:
    dataset = schema.open_dataset(name)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "first")
    accept(*pick(name, 0, 0))
    accept(*pick(name, 0, 1))
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "second")
    with pytest.raises(AutolabelError, match="nothing to undo"):
        undo(dataset)
    pick_of_first = pick(name, 0, 1)
    again(*pick_of_first)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "first")
    with pytest.raises(AutolabelError, match="decided on again since"):
        undo(dataset)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "second")
    assert [event.changes for event in undo(dataset)] == [{"undo": again.__name__}]
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "first")
    undo(dataset)
    undo(dataset)
    assert [d.decision for d in dataset.first().detections.detections] == [""] * 5


def test_what_the_app_draws_anew_is_what_the_events_changed(name: str) -> None:
    from tasks.review.operators import redrawn  # FiftyOne wants to know its database first

    dataset, chosen = pick(name, 0, 0, 2)
    ((sample, change),) = redrawn(dataset, accept(dataset, chosen)).items()
    assert sample == str(dataset.first().id)
    assert [one["decision"] for one in change["labels"]["detections"]] == ["accepted"] * 2
    assert all(isinstance(one["mask"], str) for one in change["labels"]["reviewed"])
    made = sorted(one["_id"] for one in change["labels"]["reviewed"])
    assert len(made) == 2
    ((_, change),) = redrawn(dataset, undo(dataset)).items()
    assert change["gone"] == made
    assert [one["decision"] for one in change["labels"]["detections"]] == ["", ""]
    accept(*pick(name, 0, 1))
    with pytest.raises(AutolabelError, match="nothing to redo"):
        redo(dataset)  # a new decision ends what can be redone
