"""Shards of a real worker in processes that waited for them: they end as any other."""

import re
import signal

import psutil
import pytest

from flows.server.api import client_of
from flows.server.watching import watch
from tests.integration.cluster import Cluster, ended, every_frame_once, wait_for
from tests.integration.runs import MICRO, write_sequence
from tests.integration.test_workers import history

FRAMES = 600


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_shards_in_processes_that_waited(tmp_path):
    for number in range(4):
        write_sequence(tmp_path / "in" / f"drive{number}", tmp_path / "boxes", FRAMES)
    with Cluster(tmp_path) as cluster:
        arguments = ["--boxes", tmp_path / "boxes", "--model", MICRO, "--no-dataset", "--json"]
        done, _ = cluster.home.run(
            "backfill", tmp_path / "in", "--out", tmp_path / "out", *arguments,
            "--shard-minutes", f"{FRAMES / 118:.2f}", "--backend", "onnxruntime-cpu",
        )  # fmt: skip
        assert done["submitted"] == 4
        worker = cluster.start_worker(AUTOLABEL_SPARE_PROCESS="1", AUTOLABEL_DEVICE_PROCESSES="1")

        def process(number):
            """The process of a shard that got one which waited, while it labels; and its run."""
            told = re.split(r"begins in process (\d+)", cluster.log("worker0"))
            states = {one["state_name"]: one["id"] for one in cluster.runs(done["run_key"])}
            if len(told) < 2 * number + 3 or "download drive" not in told[2 * number + 2]:
                return None
            return "Running" in states and (int(told[2 * number + 1]), states["Running"])

        pid, run = wait_for(lambda: process(0), 200)
        below = psutil.Process(pid).children(recursive=True)
        assert below  # device processes, begun before
        psutil.Process(pid).send_signal(signal.SIGTERM)
        wait_for(lambda: "AwaitingRetry" in history(cluster, run))
        assert "Crashed" not in history(cluster, run)

        pid, run = wait_for(lambda: process(1), 200)
        below = psutil.Process(pid).children(recursive=True)
        psutil.Process(pid).kill()
        wait_for(lambda: "Crashed" in history(cluster, run))
        wait_for(lambda: not any(one.is_running() for one in below))
        with client_of(cluster.api, ""):
            assert list(watch(done["run_key"], str(tmp_path / "out"), 1.0))[-1] == []
        assert ended(cluster, done["run_key"]) == {"Completed"}
        assert history(cluster, run).count("Running") == 2
        assert every_frame_once(str(tmp_path / "in"), str(tmp_path / "out"), done["run_key"]) == 4
        # The next one waits already; it goes with its worker, even one that was killed.
        waits = wait_for(lambda: spares(worker.pid))
        psutil.Process(worker.pid).kill()
        wait_for(lambda: not any(one.is_running() for one in waits))


def spares(worker):
    """Processes of a worker that wait, with those that they have begun."""
    tree = psutil.Process(worker).children(recursive=True)
    waiting = [one for one in tree if "flows.machine.spare" in one.cmdline()]
    return [*waiting, *(child for one in waiting for child in one.children())]
