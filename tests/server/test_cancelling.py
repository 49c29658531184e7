"""Which shards a cancellation means, when those who took them are no longer there."""

import uuid
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Running

from flows.params import LabelParams
from flows.plan.plan import job_of
from flows.plan.shards import ShardParams
from flows.server import cancelling
from tasks.frames.discover import FoundSequence

GPU = {"backend": "onnxruntime-cuda", "precision": "fp16"}


@pytest.fixture
def asked(tmp_path):
    (tmp_path / "in").mkdir()
    return LabelParams(sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), model="compact")


@pytest.fixture
def cancelled(monkeypatch):
    """Run keys that are cancelled, of shards with these labels; Prefect is a stand-in."""

    def of(asked, *labels):
        found = [FlowRun(flow_id=uuid.uuid4(), parameters={"params": {}}, state=Running())]
        for label in labels:
            piece = FoundSequence("drive", "/in/drive", "k", 4)
            shard = ShardParams(label=label, run_key=job_of(label).stamp.run_key, pieces=[piece])
            params = {"params": shard.model_dump(mode="json")}
            found.append(FlowRun(flow_id=uuid.uuid4(), parameters=params, state=Running()))
        client = SimpleNamespace(set_flow_run_state=lambda *_: None)
        monkeypatch.setattr(cancelling, "flow_runs", lambda **_: found)
        monkeypatch.setattr(cancelling, "connected", lambda: nullcontext(client))
        return cancelling.cancel_backfill(asked)

    return of


def test_shards_of_gpus_are_cancelled_where_there_is_none(asked, cancelled):
    theirs = asked.model_copy(update=GPU)
    assert cancelled(asked, theirs) == {job_of(theirs).stamp.run_key: 1}
    named = asked.model_copy(update={"backend": "onnxruntime"})
    assert list(cancelled(named, theirs)) == [job_of(theirs).stamp.run_key]


def test_shards_of_others_go_on(asked, cancelled):
    theirs = asked.model_copy(update=GPU)
    others = [
        theirs.model_copy(update=change)
        for change in ({"out": asked.out + "2"}, {"min_score": 0.2}, {"precision": "fp32"})
    ]
    assert cancelled(asked.model_copy(update=GPU), *others) == {}
    assert cancelled(asked.model_copy(update={"backend": "torch"}), theirs) == {}
