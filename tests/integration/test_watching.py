"""Whoever watches a run starts again what the server leaves crashed."""

from datetime import timedelta

from flows.server import watching
from flows.server.shard_runs import runs_of


def test_a_shard_that_stays_crashed_or_is_never_begun_is_scheduled_again(terminal, monkeypatch):
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Crashed, Pending, Running

    monkeypatch.setattr(watching, "CRASHED_FOR", timedelta(seconds=0.2))
    monkeypatch.setattr(watching, "NOT_BEGUN_FOR", timedelta(seconds=0.2))
    some_flow = flow(lambda: None, name="label-shard")
    with get_client(sync_client=True) as client:
        for state in (Crashed(), Pending(name="Submitting"), Running(), Completed()):
            client.create_flow_run(some_flow, tags=["run:left"], state=state)
    glances = watching.watch("left", 0.05)
    names = {one.state.name for one in next(glances)}
    while names & {"Crashed", "Submitting"}:
        names = {one.state.name for one in next(glances)}
    assert names == {"AwaitingRetry", "Running"}
    next(glances)
    states = sorted(run.state.name for run in runs_of("left"))
    assert states == ["AwaitingRetry", "AwaitingRetry", "Completed", "Running"]
