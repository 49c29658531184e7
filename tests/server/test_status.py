"""What `autolabel status` advises, and for how long."""

import os
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Failed

from flows.cli import status as shown
from flows.params import LabelParams
from flows.plan.shards import Piece, ShardParams
from flows.server import status
from flows.server.shard_runs import MOST_STARTS, counted_states, ending
from flows.server.status import RunStatus, group_runs
from tasks.observe.progress import CHECK, LOAD
from tasks.pipeline.outcome import SequenceOutcome
from tasks.store import manifests, quarantine


@pytest.mark.parametrize(("given_up", "told"), [(1, "1 sequence given up"), (3, "3 sequences")])
def test_one_is_singular(given_up, told):
    run = RunStatus("key", LabelParams(sources=["/frames"], out="/out"), given_up=["x"] * given_up)
    assert told in "".join(run.to_do(1))


def test_reasons_that_differ_in_numbers_are_one_and_told_as_they_are():
    label = LabelParams(sources=["/frames"], out="/out")
    shard = ShardParams(
        label=label, run_key="key", pieces=[Piece("drive", "/frames/drive", "k", 1)]
    )
    params = {"params": shard.model_dump(mode="json")}
    far = f"cannot write /{60 * 'long/'}1.json: no space left"
    reasons = ("7 frames: /a/drive1.mp4: no video", "8 frames: /a/drive2.mp4: no video", far)
    runs = [
        FlowRun(flow_id=uuid.uuid4(), parameters=params, state=Failed(message=one))
        for one in reasons
    ]
    (run,) = group_runs(runs)
    assert run.as_json()["failures"] == {reasons[0]: 2, reasons[2]: 1}


def run_in(state, **facts):
    """What is said of a run whose only shard is in a state."""
    label = LabelParams(sources=["/frames"], out="/out")
    piece = Piece("drive", "/frames/drive", "k", 1)
    shard = ShardParams(label=label, run_key="key", pieces=[piece])
    params = {"params": shard.model_dump(mode="json")}
    (run,) = group_runs([FlowRun(flow_id=uuid.uuid4(), parameters=params, state=state, **facts)])
    run.unlabeled = sorted(name for name, _ in run.bad)
    return run


def test_a_shard_that_is_about_to_be_begun_again_has_not_failed():
    from prefect.states import AwaitingRetry, Crashed

    for state in (Crashed(message="exited with status code -9"), AwaitingRetry()):
        run = run_in(state, run_count=1)
        assert (run.active, run.as_json()["failures"], list(run.to_do(1))) == (1, {}, [])
    for given_up in (
        run_in(Crashed(message="exited", timestamp=datetime.now(UTC) - timedelta(hours=1))),
        run_in(Crashed(message="exited"), run_count=MOST_STARTS),
    ):
        assert (given_up.active, given_up.as_json()["failures"]) == (0, {"exited": 1})
        told = "".join(given_up.to_do(1))
        command = "`autolabel backfill /frames --out /out --sequences drive`"
        assert told == f"1 sequence failed: fix the cause, then {command}"


def test_why_a_shard_was_given_back_is_told_while_it_waits(capsys):
    from prefect.states import AwaitingRetry

    run = run_in(AwaitingRetry(message="drive: cannot write /out/x: no space left"), run_count=3)
    told = run.as_json()
    assert told["waiting"] == {"drive: cannot write /out/x: no space left": 1}
    assert (told["failures"], told["to_do"]) == ({}, [])
    shown._show(told)
    assert "  waits  1x  drive: cannot write /out/x: no space left\n" in capsys.readouterr().out


def test_why_labels_were_not_loaded_is_told():
    from prefect.states import Completed

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
def drive(tmp_path):
    """A sequence that shards fail at, is given up, and labeled in some version of its files."""
    label = LabelParams(sources=[str(tmp_path)], out=str(tmp_path / "out"))

    class Drive:
        def piece(self, version, name="drive"):
            return Piece(name, f"/in/{name}", version, 1)

        def labeled(self, piece, after_s, *, partial=False):
            key = "run", piece.sequence_id, piece.content_key
            path = tmp_path / "out" / manifests.path_of(*key, partial=partial)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
            at_s = time.time() + after_s
            os.utime(path, (at_s, at_s))

        def give_up(self, piece):
            case = quarantine.Case(label.out, "run", piece.sequence_id, piece.content_key)
            quarantine.note_failure(case, "a run", "no disk", final=True)

        def told(self, *failed):
            shard = ShardParams(label=label, run_key="run", pieces=failed)
            params = {"params": shard.model_dump(mode="json")}
            state = Failed(message="no disk")
            (run,) = group_runs([FlowRun(flow_id=uuid.uuid4(), parameters=params, state=state)])
            status.look_at_storage(run)
            return run

    return Drive()


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
    drive, capsys, version, after_s, partial, past
):
    planned, other = drive.piece("as planned"), drive.piece("k", "other")
    drive.give_up(planned)
    drive.labeled(other, 60)
    run = drive.told(planned)
    assert (run.given_up, run.complete) == (["drive"], 1)
    drive.labeled(drive.piece(version), after_s, partial=partial)
    run = drive.told(planned)
    told = run.as_json()
    assert bool(told["failures_labeled_since"]) == past
    assert bool(told["failures"]) == bool(told["quarantined"]) == bool(told["to_do"]) != past
    assert (run.complete, run.partial) == (2 - partial, partial)
    shown._show(told)
    words = "past        1 shard failed; all of it is labeled since"
    assert (words in capsys.readouterr().out) == past


def test_a_shard_has_failed_while_one_of_its_sequences_lacks_labels(drive, monkeypatch):
    one, two = drive.piece("k", "one"), drive.piece("k", "two")
    drive.labeled(one, 60)
    run = drive.told(one, two)
    assert (run.unlabeled, run.as_json()["failures"]) == (["two"], {"no disk": 1})
    asked = []
    monkeypatch.setattr(status, "failed_frames", lambda _, of: asked.append(of))
    status._frames_without_labels(run)
    assert list(asked[0].values()) == [{"two"}]
