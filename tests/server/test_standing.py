"""Which failures `status` tells: those that stand, and none that was labeled since."""

import os
import shutil
import time
import uuid

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Failed

from flows.cli import status as shown
from flows.params import LabelParams
from flows.plan.shards import Piece, ShardParams
from flows.server import status
from flows.server.standing import Source
from tasks.store import manifests, quarantine
from tests.integration.runs import write_image

WHY = "3 frames, 1 sequence failed: its content changed while it was being labeled: run again"


@pytest.fixture
def drive(tmp_path):
    """A sequence whose files can be written again, and labeled as they are."""

    class Drive:
        label = LabelParams(sources=[str(tmp_path)], out=str(tmp_path / "out"))

        def write(self, name="drive", again=0, folder="in"):
            at = tmp_path / folder / name
            os.utime(write_image(at / "0000.jpg"), (again, again))
            key = Source(name, str(at), self.label.frames, listable=True).content_key()
            return Piece(name, str(at), key, 1)

        def labeled(self, piece, at_s=None, *, partial=False):
            key = "run", piece.sequence_id, piece.content_key
            path = tmp_path / "out" / manifests.path_of(*key, partial=partial)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
            at_s = self.clock_s() if at_s is None else at_s
            os.utime(path, (at_s, at_s))

        def clock_s(self):
            """A time after every other one: those of files are as coarse as the kernel's clock."""
            self.now_s = getattr(self, "now_s", time.time()) + 1
            return self.now_s

        def give_up(self, piece):
            case = quarantine.Case(self.label.out, "run", piece.sequence_id, piece.content_key)
            quarantine.note_failure(case, "a run", WHY, final=True)

        def shard(self, state, *pieces):
            shard = ShardParams(label=self.label, run_key="run", pieces=pieces)
            params = {"params": shard.model_dump(mode="json")}
            return FlowRun(flow_id=uuid.uuid4(), parameters=params, state=state)

        def told(self, *newest_first):
            (run,) = status.group_runs(newest_first)
            status.look_at_storage(run)
            return run

    return Drive()


def stands(run):
    told = run.as_json()
    both = bool(told["failures"]), bool(told["failures_labeled_since"])
    assert both in {(True, False), (False, True)}
    assert bool(told["to_do"]) == both[0]
    return both[0]


def test_what_changed_after_it_was_planned_and_is_labeled_as_it_is_has_not_failed(drive, capsys):
    planned = drive.write(again=1)
    failed = drive.shard(Failed(message=WHY), planned)
    assert stands(drive.told(failed))
    changed = drive.write(again=2)
    assert changed.content_key != planned.content_key
    drive.labeled(changed)
    run = drive.told(failed)
    assert not stands(run)
    shown._show(run.as_json())
    out = capsys.readouterr().out
    assert "past        1 shard failed; all of it is labeled since" in out
    assert WHY not in out
    drive.write(again=3)
    assert stands(drive.told(failed)), "those labels are of other files"


def test_what_the_next_backfill_labeled_needs_no_look_at_the_source(drive, tmp_path):
    planned, changed = drive.write(again=1), drive.write(again=2)
    drive.labeled(changed)
    runs = drive.shard(Completed(), changed), drive.shard(Failed(message=WHY), planned)
    shutil.rmtree(tmp_path / "in")
    assert not stands(drive.told(*runs))


def test_a_failure_is_told_where_nobody_can_tell_that_it_is_past(drive, tmp_path):
    before, planned = drive.write(again=1), drive.write(again=2)
    drive.labeled(before)
    failed = drive.shard(Failed(message=WHY), planned)
    assert stands(drive.told(failed)), "labels of before"
    shutil.rmtree(tmp_path / "in")
    assert stands(drive.told(failed)), "the source is gone"


def test_what_was_given_up_and_labeled_all_the_same_is_not_given_up(drive):
    planned, other = drive.write(again=1), drive.write(again=2)
    drive.give_up(planned)
    drive.give_up(other)
    failed = drive.shard(Failed(message=WHY), planned)
    assert drive.told(failed).given_up == ["drive"], "one sequence, though of two versions"
    drive.labeled(planned)
    assert drive.told(failed).given_up == ["drive"], "the other files"
    drive.labeled(other)
    assert not stands(drive.told(failed))


@pytest.mark.parametrize("known", ["asked", "source gone", "shards long ago"])
def test_what_was_given_up_repaired_and_labeled_is_left_to_nobody(drive, tmp_path, known):
    """Also where no shard tells any more where it was, or it cannot be listed from here."""
    broken, other = drive.write(again=1), drive.write("other")
    drive.give_up(broken)
    drive.labeled(other)
    told = drive.told(drive.shard(Completed(), other))
    assert (told.given_up, told.complete) == (["drive"], 1)
    assert "1 sequence given up" in "".join(told.to_do(1))
    repaired = drive.write(again=2)
    drive.labeled(repaired)
    shards = [drive.shard(Completed(), repaired), drive.shard(Failed(message=WHY), broken)]
    if known == "source gone":
        shutil.rmtree(tmp_path / "in")
    if known == "shards long ago":
        shards = [drive.shard(Completed(), other)]
    told = drive.told(*shards)
    assert (told.given_up, told.unlabeled, list(told.to_do(1))) == ([], [], [])
    if known == "asked":
        drive.write(again=1)
        assert drive.told(*shards).given_up == ["drive"], "the broken one is there again"


def test_labels_from_before_it_was_given_up_are_no_answer(drive, tmp_path):
    before, broken = drive.write(again=1), drive.write(again=2)
    drive.labeled(before, at_s=1)
    drive.give_up(broken)
    shard = drive.shard(Failed(message=WHY), broken)
    assert drive.told(shard).given_up == ["drive"]
    shutil.rmtree(tmp_path / "in")
    assert drive.told(shard).given_up == ["drive"], "nobody knows better"


def test_a_sequence_that_changed_is_one_sequence(drive):
    for number in range(3):
        drive.labeled(drive.write(again=number), at_s=number + 1)
    last, other = drive.write(again=3), drive.write("other")
    drive.labeled(other)
    told = drive.told(drive.shard(Completed(), other))
    assert (told.complete, told.partial) == (2, 0)
    drive.labeled(last, partial=True)
    told = drive.told(drive.shard(Completed(), other))
    assert (told.complete, told.partial) == (1, 1)


def test_a_sequence_of_the_same_name_elsewhere_is_another_one(drive):
    planned, other = drive.write(again=1), drive.write(again=2, folder="elsewhere")
    drive.labeled(other)
    failed = drive.shard(Failed(message=WHY), planned)
    assert stands(drive.told(failed))
    assert stands(drive.told(drive.shard(Completed(), other), failed))


def test_a_shard_has_failed_while_one_of_its_sequences_lacks_labels(drive, monkeypatch):
    one, two = drive.write("one"), drive.write("two")
    failed = drive.shard(Failed(message=WHY), one, two)
    drive.labeled(one)
    run = drive.told(failed)
    assert stands(run)
    assert len(run.unlabeled) == 1
    rows = [
        {"sequence": name, "camera": "", "frame": 0, "uri": f"{name}/0000.jpg", "reason": "gone"}
        for name in ("one", "two")
    ]
    monkeypatch.setattr(status, "failed_frames", lambda *_: rows)
    assert status._frames_without_labels(run) == rows[1:]
    drive.labeled(two)
    run = drive.told(failed)
    assert not stands(run)
    assert status._frames_without_labels(run) == []
