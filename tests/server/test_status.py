"""What `autolabel status` advises, and for how long."""

import os
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import AwaitingRetry, Completed, Crashed, Failed

from flows.cli import status as shown
from flows.params import LabelParams
from flows.plan.shards import Piece, ShardParams
from flows.server import status
from flows.server.runs import MOST_STARTS, counted_states, ending
from flows.server.status import RunStatus, group_runs
from tasks.observe.progress import CHECK, LOAD
from tasks.pipeline.outcome import SequenceOutcome
from tasks.store import manifests, quarantine


@pytest.mark.parametrize(("given_up", "told"), [(1, "1 sequence given up"), (3, "3 sequences")])
def test_one_is_singular(given_up, told):
    run = RunStatus("key", LABEL, given_up=["x"] * given_up)
    assert told in "".join(run.to_do(1))


LABEL = LabelParams(sources=["/frames"], out="/out")
DRIVE = Piece("drive", "/frames/drive", "k", 1)


def run_in(*states, label=LABEL, pieces=(DRIVE,), **facts):
    """What is said of a run with a shard in each of these states."""
    shard = ShardParams(label=label, run_key="run", pieces=pieces)
    params = {"params": shard.model_dump(mode="json")}
    (run,) = group_runs([
        FlowRun(flow_id=uuid.uuid4(), parameters=params, state=one, **facts) for one in states
    ])  # fmt: skip
    return run


def test_reasons_that_differ_in_numbers_are_one_and_told_as_they_are():
    far = f"cannot write /{60 * 'long/'}1.json: no space left"
    reasons = ("7 frames: /a/drive1.mp4: no video", "8 frames: /a/drive2.mp4: no video", far)
    run = run_in(*[Failed(message=one) for one in reasons])
    assert run.as_json()["failures"] == {reasons[0]: 2, reasons[2]: 1}


def test_a_shard_that_is_about_to_be_begun_again_has_not_failed():
    hours_ago = datetime.now(UTC) - timedelta(hours=9)
    for state in (Crashed(message="exited", timestamp=hours_ago), AwaitingRetry()):
        run = run_in(state, run_count=1)
        assert (len(run.active), run.as_json()["failures"], list(run.to_do(1))) == (1, {}, [])
    for given_up in (
        run_in(Crashed(message="exited", timestamp=datetime.now(UTC) - timedelta(days=4))),
        run_in(Crashed(message="exited"), run_count=MOST_STARTS),
    ):
        assert (given_up.active, given_up.as_json()["failures"]) == ([], {"exited": 1})
        status.look_at_storage(given_up)
        told = "".join(given_up.to_do(1))
        command = "`autolabel backfill /frames --out /out --sequences drive`"
        assert told == f"1 sequence failed: fix the cause, then {command}"


def test_why_a_shard_was_given_back_is_told_while_it_waits(capsys):
    run = run_in(AwaitingRetry(message="drive: cannot write /out/x: no space left"), run_count=3)
    told = run.as_json()
    assert told["waiting"] == {"drive: cannot write /out/x: no space left": 1}
    assert (told["failures"], told["to_do"]) == ({}, [])
    shown._show(told)
    assert "  waits  1x  drive: cannot write /out/x: no space left\n" in capsys.readouterr().out


def test_why_labels_were_not_loaded_is_told():
    away = SequenceOutcome("drive", frames=3, error="MemoryError", stage=LOAD)
    bad = SequenceOutcome("other", error="no disk", stage=CHECK)
    for outcomes, kind in (([away], Completed), ([away, bad], Failed)):
        message = ending(outcomes, "3 frames", 0, "drives").message
        run = run_in(kind(message=message))
        assert run.as_json()["not_loaded"] == {"drive: MemoryError": 1}
        assert "not loaded (drive: MemoryError)" in "".join(run.to_do(1))


def test_states_are_words():
    assert counted_states({"Running": 2, "AwaitingRetry": 1}) == "1 awaiting retry, 2 running"


@pytest.fixture
def label(tmp_path):
    return LabelParams(sources=[str(tmp_path)], out=str(tmp_path / "out"))


def labeled(label, piece, after_s, *, partial=False):
    """Have labels of a sequence, written so long after now."""
    key = "run", piece.sequence_id, piece.content_key
    folder = manifests.PARTIAL if partial else manifests.COMPLETE
    path = Path(label.out, manifests.path_of(*key, folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    os.utime(path, (time.time() + after_s,) * 2)


def failed(label, *pieces):
    """What is said of a run whose shard of these failed, with what storage has."""
    run = run_in(Failed(message="no disk"), label=label, pieces=pieces)
    status.look_at_storage(run)
    return run


@pytest.mark.parametrize(
    ("version", "after_s", "partial", "past"),
    [
        ("as planned", -60, False, True),
        ("other files", 60, False, True),
        ("other files", -60, False, False),
        ("other files", 60, True, False),
    ],
)
def test_what_has_labels_by_now_has_not_failed_and_is_not_given_up(
    label, version, after_s, partial, past
):
    planned = replace(DRIVE, content_key="as planned")
    case = quarantine.Case(label.out, "run", "drive", "as planned")
    quarantine.note_failure(case, "a run", "no disk", final=True)
    labeled(label, replace(DRIVE, sequence_id="other"), 60)
    run = failed(label, planned)
    assert (run.given_up, run.complete) == (["drive"], 1)
    labeled(label, replace(DRIVE, content_key=version), after_s, partial=partial)
    run = failed(label, planned)
    told = run.as_json()
    assert bool(told["failures"]) == bool(told["quarantined"]) == bool(told["to_do"]) != past
    assert (run.complete, run.partial) == (2 - partial, partial)


def test_a_shard_has_failed_while_one_of_its_sequences_lacks_labels(label, monkeypatch):
    one, two = (replace(DRIVE, sequence_id=name) for name in ("one", "two"))
    labeled(label, one, 60)
    run = failed(label, one, two)
    assert (run.unlabeled, run.as_json()["failures"]) == (["two"], {"no disk": 1})
    asked = []
    monkeypatch.setattr(status, "failed_frames", lambda _, of: asked.append(of))
    status._frames_without_labels(run)
    assert list(asked[0].values()) == [{"two"}]


def test_a_label_run_that_has_not_started_has_no_random_name():
    label = {"sources": ["s3://b/drives/2026-05"], "out": "/out"}
    due = datetime(2026, 5, 1, 12, tzinfo=UTC)
    run = FlowRun(flow_id=uuid.uuid4(), parameters={"params": label}, expected_start_time=due)
    assert status._name_of(run).startswith("label drives/2026-05 2026-05-01 ")
