"""Workers that are stopped or die while they label: nothing is lost, the shard goes on."""

import signal

import pytest

from tests.integration.cluster import ended, every_frame_once, wait_for
from tests.integration.runs import MICRO


@pytest.fixture
def slow_frames(cluster):
    """Every frame's download takes seconds, so that a shard can be met while it runs."""
    cluster.proxy.fault = lambda method, path: "slow" if path.endswith(".jpg") else ""
    cluster.proxy.silence_s = 1.5
    yield
    cluster.proxy.fault = lambda method, path: ""


def start_one(cluster, arguments):
    """Submit a backfill of one shard and wait until it labels; returns its run key and process."""
    known = {one.pid for one in cluster.flow_run_processes()}
    common = ["--model", MICRO, "--no-dataset", "--json"]
    done, _ = cluster.home.run("backfill", *arguments, *common)
    assert done["submitted"] == 1
    run_key, before = done["run_key"], len(cluster.proxy.requests)

    def labeling():
        frames = any(path.endswith(".jpg") for _, path, _ in cluster.proxy.requests[before:])
        new = [one for one in cluster.flow_run_processes() if one.pid not in known]
        return new if frames else []

    return run_key, wait_for(labeling)[0]


def states(cluster, run_key):
    """Every state that the run's only shard has had, oldest first."""
    (run,) = cluster.runs(run_key)
    return history(cluster, run["id"])


def history(cluster, run_id):
    """Every state that a flow run has had, oldest first."""
    found = cluster.get(f"flow_run_states/?flow_run_id={run_id}")
    return [one["name"] for one in sorted(found, key=lambda one: one["timestamp"])]


def begun_without_a_heartbeat(cluster):
    """Return the id of a shard that is Running and whose process was killed at once."""
    flow = cluster.get("flows/name/label-shard")["id"]
    body = {"flow_id": flow, "state": {"type": "PENDING"}}
    run = cluster.post("flow_runs/", body)["id"]
    cluster.post(f"flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}})
    return run


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_shard_is_given_back_on_sigterm_and_done_again_after_kill(
    cluster, upload, s3, slow_frames
):
    silent = begun_without_a_heartbeat(cluster)
    arguments = upload(3, 24, "stop")
    run_key, process = start_one(cluster, arguments)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    told = states(cluster, run_key)
    assert told[-1] == "AwaitingRetry"
    assert "Crashed" not in told
    (run,) = cluster.runs(run_key)
    assert run["state"]["message"] == "its worker was stopped"

    new = wait_for(lambda: [one for one in cluster.flow_run_processes() if one != process])
    wait_for(lambda: cluster.runs(run_key)[0]["state_name"] == "Running")
    new[0].kill()
    cluster.proxy.fault = lambda method, path: ""
    wait_for(lambda: ended(cluster, run_key) == {"Completed"}, 200)
    told = states(cluster, run_key)
    assert "Crashed" in told
    assert told.count("Running") == 3
    assert every_frame_once(f"{s3}/in", f"{s3}/out", run_key) == 3
    wait_for(lambda: "Crashed" in history(cluster, silent), 200)
    wait_for(lambda: "AwaitingRetry" in history(cluster, silent), 60)
