"""What a backfill that is waited for says of itself."""

import uuid
from types import SimpleNamespace

import pytest

from flows.cli import backfill_run
from flows.params import LabelParams
from flows.plan.shards import Piece, ShardParams


@pytest.mark.parametrize(("completed", "told"), [(True, "4 of 8 frames"), (False, "0 of 8 frames")])
def test_frames_of_a_shard_that_was_cancelled_are_not_labeled(
    completed, told, monkeypatch, tmp_path
):
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Running

    label = LabelParams(sources=["/frames"], out=str(tmp_path))

    def running(name):
        pieces = [Piece(name, f"/frames/{name}", "k", 4)]
        shard = ShardParams(label=label, run_key="key", pieces=pieces)
        params = {"params": shard.model_dump(mode="json")}
        return FlowRun(flow_id=uuid.uuid4(), parameters=params, state=Running())

    plan = SimpleNamespace(
        stamp=SimpleNamespace(run_key="key"), params=SimpleNamespace(label=label),
        to_label=2, in_flight=0, frames=8,
    )  # fmt: skip
    monkeypatch.setattr(backfill_run, "percent_done", lambda _: {})
    monkeypatch.setattr(backfill_run, "labeled_by", lambda ids: set(ids) if completed else set())
    first, second = running("first"), running("second")
    far = backfill_run._HowFar(plan)
    assert far.text([first, second]).startswith("0 of 8 frames")
    assert far.text([second]).startswith(told)
