"""Everything dies, again and again, in the middle of a backfill; and nothing is lost or doubled."""

import contextlib
import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest
import s3fs

from tests.faults import FaultyProxy
from tests.integration.cluster import Cluster, every_frame_once, tree, wait_for
from tests.integration.runs import MICRO, Home

DEADLINE_S = 2400
# How often each dies. A worker first: a run that it took along is missed after a minute and a half.
ONE_EACH = {"worker": 1, "postgres": 1, "server": 1, "supervisor": 1}
MANY = {"worker": 20, "supervisor": 2, "server": 2, "postgres": 2, "mongod": 1}


class Chaos:
    """Kills workers, their supervisors, the server and both databases, and starts them again."""

    def __init__(self, cluster: Cluster, database: Path, kills: dict[str, int], pause_s: float = 0):
        self.cluster, self.database, self.pause_s = cluster, database, pause_s
        self.random = random.Random(7)
        self.events = [victim for victim, count in kills.items() for _ in range(count)]
        if pause_s:
            self.random.shuffle(self.events)
        self.done: Counter[str] = Counter()
        self.thread = threading.Thread(target=self.rage, daemon=True)

    def rage(self):
        for event in self.events:
            if self.pause_s:
                time.sleep(self.random.uniform(0.5, 1.5) * self.pause_s)
            else:
                wait_for(self.is_labeling)
            getattr(self, f"kill_{event}")()
            self.done[event] += 1

    def is_labeling(self):
        """Whether shards run and none is about to: one that never began is lost late."""
        states = {"state": {"type": {"any_": ["PENDING", "RUNNING"]}}}
        with contextlib.suppress(httpx.HTTPError):
            runs = self.cluster.post("flow_runs/filter", {"flow_runs": states})
            return {run["state_type"] for run in runs} == {"RUNNING"}

    def victim(self):
        """A worker that is alive, one whose flow run is labeling where there is one."""
        busy = {
            process.ppid() for process in self.cluster.flow_run_processes() if process.is_running()
        }
        alive = [worker for worker in self.cluster.workers if worker.poll() is None]
        working = [worker for worker in alive if busy & {child.pid for child in tree(worker.pid)}]
        found = self.random.choice(working or alive)
        self.cluster.workers.remove(found)
        return found

    def kill_worker(self):
        self.cluster.kill(self.victim())
        self.cluster.start_worker()

    def kill_supervisor(self):
        """`autolabel worker` becomes it: what it runs has to end by itself."""
        victim = self.victim()
        everything = tree(victim.pid)
        victim.kill()
        assert psutil.wait_procs(everything, 60)[1] == []
        self.cluster.start_worker()

    def kill_server(self):
        self.cluster.kill(self.cluster.server)
        time.sleep(1)
        self.cluster.start_server()

    def kill_postgres(self):
        psutil.Process(self.cluster.postgres.process_id).kill()
        with self.cluster.postgres.changing:
            self.cluster.postgres.start()

    def kill_mongod(self):
        """Wait for one: it is started by the first shard that loads."""
        process_id = wait_for(lambda: self.database.exists() and self.database.read_text().strip())
        psutil.Process(int(process_id)).kill()


def faults(seed: int, share: float):
    generator, lock = random.Random(seed), threading.Lock()

    def fault(method: str, path: str) -> str:
        with lock:
            if generator.random() >= share:
                return ""
            return generator.choice(["500", "503", "slow", "cut", "reset"])

    return fault


def artifacts(url: str) -> dict[str, bytes]:
    fs = s3fs.S3FileSystem()
    fs.invalidate_cache()
    root = url.removeprefix("s3://")
    return {
        name.removeprefix(root): fs.cat_file(name)
        for part in ("labels", "manifests")
        for name in fs.find(f"{root}/{part}")
    }


@pytest.mark.parametrize(
    ("sequences", "frames", "kills", "pause_s"),
    [
        pytest.param(5, 20, ONE_EACH, 0, marks=pytest.mark.ci, id="small"),
        pytest.param(40, 40, MANY, 12, marks=pytest.mark.slow, id="full"),
    ],
)
@pytest.mark.timeout(DEADLINE_S + 600)
def test_chaos(sequences, frames, kills, pause_s, s3_endpoint, upload, s3, tmp_path):
    arguments = upload(sequences, frames, "chaos")
    proxy = FaultyProxy(s3_endpoint, faults(1, 0.2))
    proxy.silence_s = 0.5
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    cluster = Cluster(tmp_path, **(environment | {"AWS_ENDPOINT_URL": proxy.url}))
    database = tmp_path / "home" / "mongodb" / "data" / "mongod.lock"
    command = [
        "backfill", *arguments, "--model", MICRO, "--dataset", "chaos", "--shard-minutes", "0.8",
        "--wait", "--retry-quarantined", "--json",
    ]  # fmt: skip
    started = time.monotonic()
    with proxy, cluster:
        for _ in range(2):
            cluster.start_worker()
        chaos = Chaos(cluster, database, kills, pause_s)
        chaos.thread.start()
        rounds, done = 0, {"remaining": None}
        while done.get("remaining") != 0 or done.get("shards"):
            assert time.monotonic() - started < DEADLINE_S, (chaos.done, done)
            output, told = cluster.home.start(*command).communicate(timeout=DEADLINE_S)
            done = json.loads(output) if output.strip() else {"told": told[-500:]}
            done.setdefault("remaining", done.get("to_label"))
            rounds += 1
        labeled_s = time.monotonic() - started
        chaos.thread.join(DEADLINE_S)
        shards = cluster.runs(done["run_key"])
    assert chaos.done == kills
    assert every_frame_once(f"{s3}/in", f"{s3}/out", done["run_key"]) == sequences
    bad = sum(bool(fault) for _, _, fault in proxy.requests)
    print(f"{sequences} sequences in {labeled_s:.0f} s, {rounds} backfills, {len(shards)} runs, "
          f"{dict(chaos.done)}, {bad} of {len(proxy.requests)} requests broken")  # fmt: skip

    calm = [*arguments[:2], f"{s3}/calm", *arguments[3:]]
    certified = {"AUTOLABEL_CACHE": cluster.home.environment["AUTOLABEL_CACHE"]}
    Home(tmp_path / "calm", **environment | certified).label(*calm, "--no-dataset")
    assert artifacts(f"{s3}/out") == artifacts(f"{s3}/calm")
