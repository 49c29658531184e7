"""Storage that does not answer for a while costs a flow time, and not its night."""

from types import SimpleNamespace

import pytest
from prefect.logging import disable_run_logger

from flows import backfill, load_dataset, nightly
from tasks.store import retry
from tasks.store.storage import StorageError


class Away:
    """Storage that answers from the given call on."""

    def __init__(self, calls, answer=None, cause=ConnectionRefusedError):
        self.left, self.answer, self.cause = calls, answer, cause

    def __call__(self, *_, **__):
        self.left -= 1
        if self.left >= 0:
            raise StorageError("cannot list s3://labels") from self.cause("refused")
        return self.answer


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_S", 0.01)


def test_storage_is_waited_for_and_that_is_told():
    lines = []
    assert retry.until_answered(Away(3, "there"), "planning", lines.append, 60) == "there"
    assert len(lines) == 3
    assert lines[0].startswith("planning: cannot list s3://labels; trying again in ")


def test_what_no_pause_mends_ends_at_once():
    refused = Away(2, cause=PermissionError)
    with pytest.raises(StorageError):
        retry.until_answered(refused, "planning", print, 60)
    assert refused.left == 1


def test_patience_ends():
    with pytest.raises(StorageError):
        retry.until_answered(Away(10_000), "planning", print, 0.05)


def test_flows_wait_for_storage_wherever_they_ask_it(monkeypatch):
    plan = SimpleNamespace(as_json=lambda: {"to_label": 0}, stamp=SimpleNamespace(run_key="0"))
    asked = {
        "flows.backfill.plan_in_flight": lambda: backfill.plan_task.fn(None),
        "flows.nightly.plan_backfill": lambda: nightly.look_task.fn(None),
        "tasks.store.quarantine.listed": lambda: nightly._given_up_before("s3://labels", "0"),
        "tasks.dataset.loaded.missing_manifests": lambda: load_dataset.find_task.fn("d", "s3:", ""),
    }
    monkeypatch.setattr(backfill, "create_markdown_artifact", lambda *_, **__: None)
    monkeypatch.setattr(backfill, "plan_markdown", lambda _: "")
    with disable_run_logger():
        for name, call in asked.items():
            away = Away(2, plan)
            monkeypatch.setattr(name, away)
            call()
            assert away.left == -1, name
