"""Workers that are stopped or die while they label: nothing is lost, the shard goes on."""

import re
import signal
import subprocess

import httpx
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from flows.server.lost_runs import watch
from tests.conftest import REPOSITORY
from tests.integration.cluster import AUTOLABEL, ended, every_frame_once, wait_for
from tests.integration.prefect_server import client_of
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
    before = len(cluster.proxy.requests)
    common = ["--model", MICRO, "--no-dataset", "--json"]
    done, _ = cluster.home.run("backfill", *arguments, *common)
    assert done["submitted"] == 1
    (run,) = cluster.runs(done["run_key"])

    def labeling():
        asked = [path for method, path, _ in cluster.proxy.requests[before:] if method == "GET"]
        return any(path.endswith(".jpg") for path in asked) and cluster.process_of(run["id"])

    return done["run_key"], wait_for(labeling, 200)


def states(cluster, run_key):
    """Every state that the run's only shard has had, oldest first."""
    (run,) = cluster.runs(run_key)
    return history(cluster, run["id"])


def history(cluster, run_id):
    """Every state that a flow run has had, oldest first."""
    found = cluster.get(f"flow_run_states/?flow_run_id={run_id}")
    return [one["name"] for one in sorted(found, key=lambda one: one["timestamp"])]


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_a_shard_is_given_back_on_sigterm_and_done_again_after_kill(
    cluster, upload, s3, slow_frames
):
    arguments = upload(3, 24, "stop")
    run_key, process = start_one(cluster, arguments)
    process.send_signal(signal.SIGTERM)
    process.wait(200)
    # Five seconds later the other worker has it, perhaps before anybody looks.
    told = states(cluster, run_key)
    assert told[: told.index("AwaitingRetry")].count("Running") == 1
    assert "Crashed" not in told
    (run,) = cluster.runs(run_key)
    stored = cluster.get(f"flow_run_states/?flow_run_id={run['id']}")
    assert "its worker was stopped" in [one["message"] for one in stored]
    assert progress_of(cluster, run["id"])[0].split()[1::2] == ["of", "frames"]

    wait_for(lambda: states(cluster, run_key).count("Running") == 2, 200)
    wait_for(lambda: cluster.process_of(run["id"])).kill()
    cluster.proxy.fault = lambda method, path: ""
    # A worker schedules it again, or whoever watches.
    with client_of(cluster.api, cluster.home.environment["PREFECT_API_AUTH_STRING"]):
        assert list(watch(run_key, f"{s3}/out", 1.0))[-1] == []
    assert ended(cluster, run_key) == {"Completed"}
    told = states(cluster, run_key)
    assert "Crashed" in told
    # Given back once, although its end is reported twice.
    assert told.count("Crashed") == 1, told
    assert told.count("AwaitingRetry") == 2, told
    assert told.count("Running") == 3, told
    assert every_frame_once(f"{s3}/in", f"{s3}/out", run_key) == 3
    counted = progress_of(cluster, run["id"])[-1]
    frames = counted.partition(" of ")[0]
    assert counted == f"{frames} of {frames} frames"
    steps = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    wait_for(  # none of those of the two starts before is there for ever
        lambda: (
            not (
                {one["state_name"] for one in cluster.post("task_runs/filter", steps)}
                & {"Pending", "Running"}
            )
        ),
        30,
    )


def progress_of(cluster, run_id):
    """What the progress artifacts of a flow run say, the first attempt's first."""
    body = {
        "artifacts": {"flow_run_id": {"any_": [run_id]}, "type": {"any_": ["progress"]}},
        "sort": "CREATED_DESC",
    }
    return [one["description"] for one in reversed(cluster.post("artifacts/filter", body))]


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_a_flow_run_ends_with_a_worker_that_is_killed_while_the_server_is_away(
    cluster, upload, slow_frames
):
    run_key, process = start_one(cluster, upload(1, 24, "orphan"))
    worker = process.parent()
    assert "worker" in worker.cmdline()
    cluster.kill(cluster.server)
    worker.kill()
    process.wait(100)
    cluster.proxy.fault = lambda method, path: ""
    cluster.start_server()
    wait_for(lambda: ended(cluster, run_key) == {"Completed"}, 300)


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_a_worker_of_a_job_takes_what_the_chart_counts_and_ends_when_nothing_waits(
    cluster, upload, s3, tmp_path, slow_frames
):
    """As KEDA starts it, in a pool of its own."""
    template = (REPOSITORY / "deploy" / "chart" / "templates" / "workers.yaml").read_text()
    (probe,) = re.findall(r'readinessProbe:.*?sh, -c, "(.*?)"', template)
    (query,) = re.findall(r"query: >-\n(.*?)\n +authenticationRef", template, re.DOTALL)
    url = make_url(cluster.postgres.url).set(drivername="postgresql+psycopg2")
    engine = create_engine(url)

    def waiting():
        with engine.connect() as connection:
            return connection.execute(text(query.replace("{{ $pool }}", "jobs"))).scalar()

    (temporary := tmp_path / "temporary").mkdir()
    cluster.post("work_pools/", {"name": "jobs", "type": "process"})
    (deployment,) = cluster.post("deployments/filter", {"deployments": {"name": {"any_": ["gpu"]}}})
    at = f"{cluster.api}/deployments/{deployment['id']}"
    auth = ("admin", "planted-api-secret")
    httpx.patch(at, json={"work_pool_name": "jobs"}, auth=auth).raise_for_status()
    try:
        done = cluster.backfill(*upload(2, 4, "jobs"), "--backend", "onnxruntime-cpu")
        assert wait_for(waiting) == done["submitted"] == 1
        command = [AUTOLABEL, "worker", "--pool", "jobs", "--until-idle", "5"]
        worker = cluster.spawn("job", *command, TMPDIR=str(temporary))
        ready = probe.replace("/tmp/", f"{temporary}/")
        wait_for(lambda: subprocess.run(["sh", "-c", ready], check=False).returncode == 0, 300)
        # Still one to KEDA, which takes the Job that has it off.
        wait_for(lambda: states(cluster, done["run_key"])[-1] == "Running" and waiting() == 1, 300)
        cluster.proxy.fault = lambda method, path: ""
        assert worker.wait(300) == 0
        left = {one.name for one in temporary.iterdir()}
        assert left <= {"runner_storage"}, "Prefect's own, empty"
    finally:
        httpx.patch(at, json={"work_pool_name": "gpu"}, auth=auth).raise_for_status()
    assert waiting() == 0
    assert ended(cluster, done["run_key"]) == {"Completed"}
    assert every_frame_once(f"{s3}/in", f"{s3}/out", done["run_key"]) == 2
    engine.dispose()
