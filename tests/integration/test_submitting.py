"""Submissions at the same time, on a real Prefect server: each sequence is under way once."""

import contextvars
import re
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from prefect.client.orchestration import get_client

from flows import backfill
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.server import fleet
from flows.server.prefect_runs import SHARD_DEPLOYMENT, runs_of, shard_of
from sam2_core.types import AutolabelError
from tests.integration.runs import MICRO, write_sequence


@pytest.fixture
def server(under_prefect):
    """A server that has the shards' deployment, and nobody who works on them."""
    flow, _, deployment = SHARD_DEPLOYMENT.partition("/")
    with get_client(sync_client=True) as client:
        made = client.create_deployment(client.create_flow_from_name(flow), deployment)
        yield client
        client.delete_deployment(made)


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Plan the same eight sequences with shards of so many minutes, at the rate that is assumed."""
    monkeypatch.setattr("flows.plan.backfill.last_rate", lambda *_, **__: None)
    for number in range(8):
        write_sequence(tmp_path / "in" / f"drive{number}", tmp_path / "boxes", 2)
    label = LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), model=str(MICRO),
        boxes=str(tmp_path / "boxes"), load_dataset=False, backend="onnxruntime-cpu",
    )  # fmt: skip
    return lambda minutes: plan_backfill(BackfillParams(label=label, shard_minutes=minutes))


def under_way(plan):
    """Sequences of all shards of a plan's run, as often as they are there."""
    runs = list(runs_of(plan.stamp.run_key, plan.params.label.out))
    return sorted(piece.sequence_id for run in runs for piece in shard_of(run).pieces), len(runs)


def test_submissions_of_shards_of_any_length_submit_each_sequence_once(server, planned):
    plans = [planned(minutes) for minutes in (10.0, 0.02, 0.04, 0.02)]
    assert len({len(plan.shards) for plan in plans}) == 3
    start = threading.Barrier(len(plans))

    def submitted(plan):
        start.wait()
        return backfill.submit_plan(plan)

    with ThreadPoolExecutor(len(plans)) as pool:
        contexts = [contextvars.copy_context() for _ in plans]  # which hold the server's address
        told = list(pool.map(lambda one, plan: one.run(submitted, plan), contexts, plans))
    names, shards = under_way(plans[0])
    assert names == [f"drive{number}" for number in range(8)]
    assert sum(one["submitted"] for one in told) == shards
    assert sorted(one["met"] for one in told) == [0, 8, 8, 8]
    runs = runs_of(plans[0].stamp.run_key, plans[0].params.label.out)
    first = min(one.name for one in runs)
    assert re.fullmatch(rf"backfill .*in 2\d+-.*, 8 sequences, shard 1 of {shards}", first)


@pytest.mark.ci
def test_who_submits_is_waited_for_but_not_for_ever(server, monkeypatch):
    run_key, order = uuid.uuid4().hex, []

    def second():
        with fleet.turn_of(run_key, "/out"):
            order.append("second")

    with ThreadPoolExecutor(1) as pool:
        with fleet.turn_of(run_key, "/out"), fleet.turn_of(run_key, "/elsewhere"):
            with monkeypatch.context() as patch:
                patch.setattr(fleet, "TURN_WITHIN_S", 2.0)
                with pytest.raises(AutolabelError, match="for 2 s: try again when it has ended"):
                    second()
            waiting = pool.submit(contextvars.copy_context().run, second)
            time.sleep(0.5)
            order.append("first")
        waiting.result(60)
    assert order == ["first", "second"]
