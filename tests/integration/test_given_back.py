"""Shards on a machine that fails: given back with the reason, and complete when all is well."""

import contextlib
import os
from datetime import UTC, datetime

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import Abort
from prefect.flow_engine import run_flow
from prefect.states import Pending

from flows import pipeline, shard
from flows.machine.self_test import FAILED
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.shard import label_shard
from sam2_core import devices
from sam2_core.types import DeviceLostError, ServerAbsentError
from tasks.pipeline import sequence as steps
from tasks.pipeline.device_processes import ProcessDiedError, ProcessKilledError
from tasks.processes import WORKER_VARIABLE, handling
from tasks.store import manifests, quarantine, storage
from tests.integration.cluster import every_frame_once
from tests.integration.runs import MICRO, no_space_for, write_sequence

DRIVES = [f"drive{number}" for number in range(6)]


@pytest.fixture
def shards(terminal, under_prefect, tmp_path, monkeypatch):
    """A backfill of some drives as one shard, whose flow run is begun as a worker begins it."""
    monkeypatch.setattr("flows.label_sequences.FIRST_PAUSE_S", 0.01)
    for name in DRIVES:
        write_sequence(tmp_path / "in" / name, tmp_path / "boxes", 2)
    label = LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), boxes=str(tmp_path / "boxes"),
        model=str(MICRO), load_dataset=False,
    )  # fmt: skip
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(label_shard), "gpu")
        yield Shard(client, deployment, label)


class Shard:
    """One flow run of a deployment, begun again and again in this process."""

    def __init__(self, client, deployment, label):
        self.client, self.out, self.source = client, label.out, label.sources[0]
        self.plan = lambda: plan_backfill(BackfillParams(label=label))
        (self.shard,) = self.plan().shards
        self.run_key = self.shard.run_key
        self.id = client.create_flow_run_from_deployment(deployment).id

    def begin(self):
        """Begin it; returns the state that it is in afterwards."""
        self.client.set_flow_run_state(self.id, Pending(), force=True)
        run = self.client.read_flow_run(self.id)
        given = {"params": self.shard}
        with contextlib.suppress(Abort):
            run_flow(label_shard, flow_run=run, parameters=given, return_type="state")
        self.run = self.client.read_flow_run(self.id)
        return self.run.state

    def waits_s(self):
        return (self.run.state.state_details.scheduled_time - datetime.now(UTC)).total_seconds()

    def complete(self):
        """Whether every frame is labeled once, and nobody noted anything against a sequence."""
        assert not quarantine.given_up(self.out, self.run_key)
        for one in self.shard.pieces:
            case = quarantine.Case(self.out, self.run_key, one.sequence_id, one.content_key)
            assert storage.list_names(case.attempts_uri) == {}
        return every_frame_once(self.source, self.out, self.run_key) == len(DRIVES)


@pytest.fixture
def told(monkeypatch):
    """What the flow run has told its worker, which is this process."""
    found = []
    monkeypatch.setenv(WORKER_VARIABLE, str(os.getpid()))
    with handling(lambda *_: found.append("failed"), FAILED):
        yield found


def test_a_full_disk_has_the_machine_tested_before_its_worker_takes_more(shards, monkeypatch, told):
    no_space_for("/labels/drive3/", monkeypatch)
    assert shards.begin().name == "AwaitingRetry"
    assert told == ["failed"]


@pytest.mark.parametrize("step", ["flows.pipeline.segment_chunk", "flows.pipeline.open_sequence"])
def test_a_server_that_does_not_answer_is_no_fault_of_the_machine(shards, monkeypatch, told, step):
    with monkeypatch.context() as patch:
        patch.setattr(step, raising(ServerAbsentError("grpc://triton:8001: no answer")))
        state = shards.begin()
    assert (state.name, state.message.count("no answer")) == ("AwaitingRetry", 1)
    assert told == []
    assert shards.begin().is_completed()
    assert shards.complete()


@pytest.mark.ci
def test_a_full_disk_gives_the_shard_back_later_and_later(shards, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        no_space_for("/labels/drive3/", patch)
        for start in range(2):
            state = shards.begin()
            assert state.name == "AwaitingRetry"
            assert "drive3: cannot write" in state.message
            assert "no space left" in state.message
            assert 10 * 2**start - 9 < shards.waits_s() <= 10 * 2**start
    assert "the shard goes back to the queue for 10 s: drive3: " in caplog.text
    complete = {
        name
        for name, _ in manifests.complete_keys(manifests.list_manifests(shards.out, shards.run_key))
    }
    assert complete == {*DRIVES} - {"drive3"}  # the others go on
    assert shards.begin().is_completed()
    assert shards.complete()


def test_a_lost_device_ends_the_shard_and_its_worker(shards, monkeypatch, told):
    opened, real = [], steps.list_frames
    monkeypatch.setattr(steps, "list_frames", lambda *one: opened.append(1) or real(*one))
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "segment_chunk", raising(DeviceLostError("the GPU is lost")))
        state = shards.begin()
    assert (state.name, state.message) == ("AwaitingRetry", "the GPU is lost")
    assert told == ["failed"]
    assert len(opened) < len(DRIVES)  # what nobody can label now is neither listed nor fetched
    with monkeypatch.context() as patch:
        patch.setattr(shard, "refuse_unless_offered", lambda *_: devices.refuse_if_gone(0))
        patch.setenv(devices.TESTED_VARIABLE, "onnxruntime-cuda")
        assert "is gone" in shards.begin().message
    assert told == ["failed"] * 2
    assert shards.begin().is_completed()
    assert shards.complete()


def test_a_shard_that_was_begun_too_often_fails_with_the_reason(shards, monkeypatch):
    monkeypatch.setattr(shard, "MOST_STARTS", 1)
    monkeypatch.setattr(pipeline, "segment_chunk", raising(DeviceLostError("the GPU is lost")))
    state = shards.begin()
    assert state.is_failed()
    assert "6 sequences failed: drive0: the GPU is lost" in state.message
    assert not quarantine.given_up(shards.out, shards.run_key)


@pytest.mark.parametrize(("kind", "left"), [(ProcessDiedError, 1), (ProcessKilledError, 0)])
def test_a_sequence_that_ends_processes_counts_as_one_that_ends_workers(
    shards, monkeypatch, kind, left
):
    segment, bad = pipeline.segment_chunk, shards.shard.pieces[2]

    def dies(job, state):
        if state.chunk.frames[0].sequence_id == bad.sequence_id:
            raise kind("the process that worked on this has ended")
        return segment(job, state)

    monkeypatch.setattr(pipeline, "segment_chunk", dies)
    case = quarantine.Case(shards.out, shards.run_key, bad.sequence_id, bad.content_key)
    assert shards.begin().name == "AwaitingRetry"
    assert len(storage.list_names(case.attempts_uri)) == left


def raising(error):
    def step(*_):
        raise error

    return step
