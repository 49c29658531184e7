"""Whoever watches a run hears of it, and starts again what the server leaves crashed."""

import re
import time
from functools import partial
from types import SimpleNamespace

import pytest

from flows.cli import backfill_run, display
from flows.cli.display import stderr_console
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.server import lost_runs, prefect_runs
from flows.server.cancelling import cancel_backfill
from flows.server.lost_runs import looking_after, signs_of_life
from flows.server.prefect_runs import SHARD_TAG, run_tag, sequences_in_flight
from tasks.store import retry
from tests.integration.cluster import wait_for
from tests.integration.runs import MICRO, write_sequence


def test_a_deployed_run_lives_while_it_says_so_and_is_queued_again_after(
    terminal, under_prefect, monkeypatch
):
    """Through a real API: a flow that says it lives keeps its state, and a silent one does not."""
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling, Crashed, Pending, Running

    for kind, (_, why) in lost_runs.LOST_AFTER_S.items():
        limit_s = 1.0 if kind in {"RUNNING", "CANCELLING"} else 0.2
        monkeypatch.setitem(lost_runs.LOST_AFTER_S, kind, (limit_s, why))
    some_flow = flow(lambda: None, name="label-shard")
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(some_flow)
        deployment = client.create_deployment(flow_id, "gpu", tags=[prefect_runs.TAG])

        def begun():
            run = client.create_flow_run_from_deployment(deployment, state=Running())
            client.set_flow_run_state(run.id, Running(), force=True)
            return client.read_flow_run(run.id)

        lives, silent, crashed = begun(), begun(), begun()
        client.set_flow_run_state(crashed.id, Crashed(), force=True)
        taken = client.create_flow_run_from_deployment(deployment, state=Pending())
        client.set_flow_run_state(taken.id, Pending(name="Submitting"), force=True)
        again = [silent, crashed, taken]
        others = client.create_flow_run(flow(lambda: None, name="another"), state=Running())
        killed = client.create_flow_run(some_flow, state=Running(), tags=[prefect_runs.TAG])
        runtime = SimpleNamespace(id=str(lives.id), tags=lives.tags)
        monkeypatch.setattr(lost_runs, "flow_run", runtime)
        cancelled = begun()
        client.set_flow_run_state(cancelled.id, Cancelling(), force=True)
        with signs_of_life(0.2), looking_after(0.3):
            wait_for(
                lambda: (
                    all(client.read_flow_run(one.id).state_name == "AwaitingRetry" for one in again)
                    and client.read_flow_run(cancelled.id).state_name == "Cancelled"
                    and client.read_flow_run(killed.id).state_name == "Crashed"
                )
            )
        assert client.read_flow_run(lives.id).state_name == "Running"
        assert client.read_flow_run(lives.id).updated > lives.updated
        assert client.read_flow_run(others.id).state_name == "Running"
        told = [client.read_flow_run(one.id).state.message for one in (*again, cancelled)]
        assert [one.partition(" ")[0] for one in told] == ["no", "its", "a", "no"], told


@pytest.fixture
def shard(terminal, under_prefect, tmp_path):
    """A planned backfill and a run of its only shard, whose states the test sets."""
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactCreate

    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 4)
    label = LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), boxes=str(tmp_path / "boxes"),
        model=str(MICRO), load_dataset=False,
    )  # fmt: skip
    plan = plan_backfill(BackfillParams(label=label))
    parameters = {"params": plan.shards[0].model_dump(mode="json")}
    some_flow = flow(lambda params: None, name="label-shard")
    with get_client(sync_client=True) as client:
        tags = [SHARD_TAG, run_tag(plan.stamp.run_key)]
        run = client.create_flow_run(some_flow, name="drive+0", parameters=parameters, tags=tags)

        def becomes(state):
            client.set_flow_run_state(run.id, state, force=True)

        def half_done():
            client.create_artifact(
                ArtifactCreate(type="progress", key="shard-0", data=50.0, flow_run_id=run.id)
            )

        yield plan, becomes, half_done


def test_only_a_shard_of_the_same_frames_to_the_same_storage_counts_as_under_way(shard, tmp_path):
    plan, _, _ = shard
    label, run_key = plan.params.label, plan.stamp.run_key

    def planned(**changes):
        params = BackfillParams(label=label.model_copy(update=changes))
        found = plan_backfill(params, partial(sequences_in_flight, out_uri=params.label.out))
        assert found.stamp.run_key == run_key
        return found.to_label, found.in_flight

    elsewhere = str(tmp_path / "elsewhere")
    assert planned() == (0, 1)
    assert planned(out=elsewhere) == (1, 0)
    assert next(lost_runs.watch(run_key, elsewhere, 0.05)) == []
    assert cancel_backfill(label.model_copy(update={"out": elsewhere})) == {}
    assert cancel_backfill(label) == {run_key: 1}


@pytest.mark.ci
def test_a_log_is_told_how_far_a_backfill_is_and_what_happened_meanwhile(
    shard, terminal, monkeypatch, capsys
):
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.states import AwaitingRetry, Cancelling, Completed, Crashed, Running

    plan, becomes, half_done = shard
    away = temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"})
    happens = iter([
        lambda: becomes(Running()),
        lambda: becomes(Crashed(message="exited with status code -9")),
        lambda: becomes(AwaitingRetry(message="it goes back to the queue")),
        away.__enter__,
        lambda: becomes(Running()),
        half_done,
        lambda: becomes(Cancelling()),
        lambda: becomes(Completed()),
    ])  # fmt: skip
    clock = SimpleNamespace(sleep=lambda _: next(happens)(), monotonic=time.monotonic)
    monkeypatch.setattr(lost_runs, "time", clock)
    monkeypatch.setattr(display, "LOG_INTERVAL_S", 0.0)
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.0)
    console = stderr_console()

    told_of = []

    def warn(text):
        console.print(text)
        told_of.append(text)
        if len(told_of) == 2:
            away.__exit__(None, None, None)

    backfill_run.watch_shards(console, plan, warn)
    assert next(happens, None) is None
    told = capsys.readouterr().err.splitlines()
    far = "0 of 4 frames; shards: 1 "
    half = r"2 of 4 frames, about [\d:]+ left; shards: 1 Running"
    assert told.pop().endswith("; shards: 1 Cancelling")
    assert re.fullmatch(half, told.pop())
    assert [one for one in told if not one.startswith(far)] == [
        "watching the shards",
        *2
        * [
            "watching: Prefect's API does not answer (ConnectError): start one with `autolabel "
            "up`, or set PREFECT_API_URL to a running server; trying again in 0 s"
        ],
    ]
    shown = [one.removeprefix(far) for one in told if one.startswith(far)]
    assert shown == ["Pending", "Running", "Crashed", "AwaitingRetry", "AwaitingRetry", "Running"]
