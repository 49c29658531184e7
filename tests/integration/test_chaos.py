"""Everything dies, again and again, in the middle of a backfill; and nothing is lost or doubled.

`AUTOLABEL_CHAOS=SEQUENCES:KILLS` makes it smaller or larger than the 40 sequences and 20 kills.
"""

import json
import os
import random
import threading
import time
from pathlib import Path

import psutil
import pytest
import s3fs

from tests.faults import FaultyProxy
from tests.integration.cluster import Cluster, every_frame_once, tree, wait_for
from tests.integration.runs import MICRO

SEQUENCES, KILLS = map(int, os.environ.get("AUTOLABEL_CHAOS", "40:20").split(":"))
FRAMES = 40
SERVER_RESTARTS = 2
DEADLINE_S = 2400


class Chaos:
    """Kills workers, their supervisors, the server and both databases, and starts them again."""

    def __init__(self, cluster: Cluster, database: Path, seed: int):
        self.cluster, self.database = cluster, database
        self.random = random.Random(seed)
        self.done = dict.fromkeys(("worker", "supervisor", "server", "mongod", "postgres"), 0)
        self.pause_s = float(os.environ.get("AUTOLABEL_CHAOS_PAUSE_S", "12"))
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.rage, daemon=True)

    def rage(self):
        events = ["worker"] * KILLS + ["server"] * SERVER_RESTARTS + ["mongod"]
        events += ["postgres", "supervisor"] * SERVER_RESTARTS
        self.random.shuffle(events)
        for event in events:
            time.sleep(self.random.uniform(0.5, 1.5) * self.pause_s)
            getattr(self, f"kill_{event}")()
            self.done[event] += 1
        self.over.set()

    def kill_worker(self):
        """Prefer one whose flow run is labeling."""
        busy = {one.ppid() for one in self.cluster.flow_run_processes() if one.is_running()}
        alive = [one for one in self.cluster.workers if one.poll() is None]
        working = [one for one in alive if busy & {child.pid for child in tree(one.pid)}]
        victim = self.random.choice(working or alive)
        self.cluster.kill(victim)
        self.cluster.workers.remove(victim)
        self.cluster.start_worker()

    def kill_supervisor(self):
        """`autolabel worker` becomes it: what it runs has to end by itself."""
        victim = self.random.choice([one for one in self.cluster.workers if one.poll() is None])
        everything = tree(victim.pid)
        victim.kill()
        assert psutil.wait_procs(everything, 60)[1] == []
        self.cluster.workers.remove(victim)
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


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 600)
def test_chaos(s3_endpoint, upload, s3, tmp_path):
    arguments = upload(SEQUENCES, FRAMES, "chaos")
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
        chaos = Chaos(cluster, database, 7)
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
    restarts = dict.fromkeys(("server", "postgres", "supervisor"), SERVER_RESTARTS)
    assert chaos.done == {"worker": KILLS, "mongod": 1} | restarts
    assert every_frame_once(f"{s3}/in", f"{s3}/out", done["run_key"]) == SEQUENCES
    bad = sum(bool(fault) for _, _, fault in proxy.requests)
    print(f"{SEQUENCES} sequences in {labeled_s:.0f} s, {rounds} backfills, {len(shards)} runs, "
          f"{chaos.done}, {bad} of {len(proxy.requests)} requests broken")  # fmt: skip

    calm = [*arguments[:2], f"{s3}/calm", *arguments[3:]]
    home = cluster.home
    home.environment |= {"AWS_ENDPOINT_URL": s3_endpoint}
    del home.environment["PREFECT_API_URL"]
    home.label(*calm, "--no-dataset")
    assert artifacts(f"{s3}/out") == artifacts(f"{s3}/calm")
