"""Shards whose worker is gone are taken back by whoever watches, without the server's rules."""

import json
import os
import urllib.request

import pytest

from flows.server import rescue
from flows.server.shard_runs import runs_of
from tests.faults import FaultyProxy
from tests.integration.cluster import Cluster, every_frame_once, wait_for
from tests.integration.runs import MICRO


def test_a_crashed_shard_is_scheduled_again_once(terminal, monkeypatch):
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Crashed, Running

    monkeypatch.setattr(rescue, "CRASHED_FOR", -rescue.CRASHED_FOR)
    some_flow = flow(lambda: None, name="label-shard")
    with get_client(sync_client=True) as client:
        for state in (Crashed(), Running(), Completed()):
            client.create_flow_run(some_flow, tags=["run:rescued"], state=state)
    watcher = rescue.Rescue("rescued")
    (taken,) = watcher.look()
    assert watcher.look() == []
    states = {run.id: run.state.name for run in runs_of("rescued")}
    assert states.pop(taken.id) == "AwaitingRetry"
    assert sorted(states.values()) == ["Completed", "Running"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dead_workers_shard_is_finished_though_the_server_has_no_rules(
    s3_endpoint, upload, s3, tmp_path
):
    arguments = upload(6, 8, "lost")
    proxy = FaultyProxy(s3_endpoint, lambda _, path: "slow" if path.endswith(".jpg") else "")
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    cluster = Cluster(tmp_path, **(environment | {"AWS_ENDPOINT_URL": proxy.url}))
    with proxy, cluster:
        for rule in cluster.post("automations/filter", {}):
            url = f"{cluster.api}/automations/{rule['id']}"
            urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=30).close()
        worker = cluster.start_worker()
        command = ["backfill", *arguments, "--model", MICRO, "--no-dataset", "--wait", "--json"]
        watcher = cluster.home.start(*command)
        wait_for(lambda: any(path.endswith(".jpg") for _, path, _ in proxy.requests))
        cluster.kill(worker)
        proxy.fault = lambda method, path: ""
        cluster.start_worker()
        output, told = watcher.communicate(timeout=600)
        done = json.loads(output)
        runs = cluster.runs(done["run_key"])  # a helper of the silent one may be among them
        history = [
            state
            for run in runs
            for state in cluster.get(f"flow_run_states/?flow_run_id={run['id']}")
        ]
    assert done["remaining"] == 0
    assert "lost its worker" in told
    assert "its worker is gone" in [one["message"] for one in history]
    assert every_frame_once(f"{s3}/in", f"{s3}/out", done["run_key"]) == 6
