"""What `autolabel status` advises, and for how long."""

import os
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import AwaitingRetry, Cancelled, Completed, Crashed, Failed

from flows.cli import status as shown
from flows.params import LabelParams
from flows.plan.shards import ShardParams
from flows.server import status
from flows.server.prefect_runs import MOST_STARTS, counted_states
from flows.server.run_ends import ending
from flows.server.status import group_runs, status_of
from tasks.frames.discover import FoundSequence
from tasks.observe.progress import CHECK, LOAD
from tasks.pipeline.outcome import SequenceOutcome
from tasks.store import manifests, quarantine
from tasks.types import FrameFailure
from tests.load.test_into_fiftyone import store
from tests.review.labels import STAMP, labeled_frames

LABEL = LabelParams(sources=["/frames"], out="/out")
DRIVE = FoundSequence("drive", "/frames/drive", "k", 1)


def told_of(*states, label=LABEL, pieces=(DRIVE,), run_key="run", **facts):
    """What is said of a run with a shard in each of these states."""
    shard = ShardParams(label=label, run_key=run_key, pieces=pieces)
    params = {"params": shard.model_dump(mode="json")}
    (shards,) = group_runs([
        FlowRun(flow_id=uuid.uuid4(), parameters=params, state=one, **facts) for one in states
    ])  # fmt: skip
    return status_of(shards, 1)


def test_reasons_that_differ_in_numbers_are_one_and_told_as_they_are():
    far = f"cannot write /{60 * 'long/'}1.json: no space left"
    reasons = ("7 frames: /a/drive1.mp4: no video", "8 frames: /a/drive2.mp4: no video", far)
    told = told_of(*[Failed(message=one) for one in reasons])
    assert told["failures"] == {reasons[0]: 2, reasons[2]: 1}


def test_a_shard_that_is_about_to_be_begun_again_has_not_failed():
    hours_ago = datetime.now(UTC) - timedelta(hours=9)
    for state in (Crashed(message="exited", timestamp=hours_ago), AwaitingRetry()):
        told = told_of(state, run_count=1)
        assert (told["active"], told["failures"], told["to_do"]) == (1, {}, [])
    for told in (
        told_of(Crashed(message="exited", timestamp=datetime.now(UTC) - timedelta(days=4))),
        told_of(Crashed(message="exited"), run_count=MOST_STARTS),
    ):
        assert (told["active"], told["failures"]) == (0, {"exited": 1})
        assert told["to_do"] == [f"1 sequence failed: fix the cause, then {status.AGAIN}"]


def test_why_a_shard_was_given_back_is_told_while_it_waits(capsys):
    told = told_of(AwaitingRetry(message="drive: cannot write /out/x: no space left"), run_count=3)
    assert told["waiting"] == {"drive: cannot write /out/x: no space left": 1}
    assert (told["failures"], told["to_do"]) == ({}, [])
    shown._show(told)
    assert "  waits  1x  drive: cannot write /out/x: no space left\n" in capsys.readouterr().out


def test_a_stopped_label_says_when_the_same_command_went_on():
    again, other = ({"params": {"out": "/out", "sources": one}} for one in ("/frames", "/other"))
    runs = ((Cancelled(), again), (Completed(), again), (Cancelled(), other), (Crashed(), again))
    told = status.label_runs(
        FlowRun(flow_id=uuid.uuid4(), state=state, parameters=given) for state, given in runs
    )
    assert [one["continued"] for one in told] == [False, False, False, True]


@pytest.mark.parametrize("lacked", [None, {"drive"}, set()])
def test_why_labels_were_not_loaded_is_told_until_the_dataset_has_them(lacked, monkeypatch):
    monkeypatch.setattr(status, "lacked_sequences", lambda *_: lacked)
    away = SequenceOutcome("drive", frames=3, error="MemoryError", stage=LOAD)
    bad = SequenceOutcome("other", error="no disk", stage=CHECK)
    for outcomes, kind in (([away], Completed), ([away, bad], Failed)):
        message = ending(outcomes, "3 frames", 0, "drives").message
        told = told_of(kind(message=message))
        assert told["not_loaded"] == ({} if lacked == set() else {"drive: MemoryError": 1})
        said = "not loaded (drive: MemoryError)" in "".join(told["to_do"])
        assert said == (lacked != set())


def test_states_are_as_prefect_names_them():
    assert counted_states({"Running": 2, "AwaitingRetry": 1}) == "1 AwaitingRetry, 2 Running"


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
    return told_of(Failed(message="no disk"), label=label, pieces=pieces)


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
    planned = replace(DRIVE, planned_key="as planned")
    case = quarantine.Case(label.out, "run", "drive", "as planned")
    quarantine.note_failure(case, "a run", "no disk", final=True)
    labeled(label, replace(DRIVE, sequence_id="other"), 60)
    told = failed(label, planned)
    assert (told["quarantined"], told["sequences_complete"]) == (["drive"], 1)
    labeled(label, replace(DRIVE, planned_key=version), after_s, partial=partial)
    told = failed(label, planned)
    assert bool(told["failures"]) == bool(told["quarantined"]) == bool(told["to_do"]) != past
    assert (told["sequences_complete"], told["sequences_partial"]) == (2 - partial, partial)


def test_a_shard_has_failed_while_one_of_its_sequences_lacks_labels(label):
    one, two = (replace(DRIVE, sequence_id=name) for name in ("one", "two"))
    labeled(label, one, 60)
    told = failed(label, one, two)
    assert told["failures"] == {"no disk": 1}
    assert told["to_do"] == [f"1 sequence failed: fix the cause, then {status.AGAIN}"]


def test_frames_without_labels_are_told_of_the_sequences_of_the_shards(label):
    good, bad = labeled_frames(2)
    failure = FrameFailure.of(bad.frame, "decode", "zero-byte file")
    manifest = store(Path(label.out), [good, replace(bad, masks=None, failure=failure)])
    manifests.write_manifest(label.out, manifest)
    other = replace(DRIVE, sequence_id="other")
    told = told_of(Completed(), label=label, run_key=STAMP.run_key)
    assert [one["reason"] for one in told["failed_frames"]] == ["zero-byte file"]
    assert told["to_do"] == [f"1 frame without labels: mend or delete them, then {status.AGAIN}"]
    told = told_of(Completed(), label=label, pieces=(other,), run_key=STAMP.run_key)
    assert told["failed_frames"] == []
