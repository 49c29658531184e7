"""A Prefect server with deployments and workers, as a user would start them, on free ports."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from flows.server.postgres import Postgres
from flows.server.process import SETTINGS
from flows.server.sign_in import CLIENT_AUTH
from tasks.frames.discover import discover
from tasks.store import manifests
from tasks.types import FrameSelection
from tests.faults import FaultyProxy
from tests.integration.runs import MICRO, REPOSITORY, Home
from tests.prefect_tables import put_tables

AUTOLABEL = Path(sys.executable).parent / "autolabel"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def empty_home(folder: Path) -> Iterator[None]:
    """Have in this process, in the block, an empty home where no Prefect server is configured."""
    from prefect.context import refresh_global_settings_context

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            patch.delenv(name)
        # Set, so that what is set further on is taken back at the end.
        for name in ("PREFECT_API_URL", CLIENT_AUTH):
            patch.setenv(name, "")
        patch.setenv("AUTOLABEL_CACHE", str(folder / "cache"))
        patch.setenv("PREFECT_HOME", str(folder / "prefect"))
        yield
    refresh_global_settings_context()


def tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def wait_for(what, timeout: float = 120, every: float = 0.3) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(every)
    raise AssertionError(f"not within {timeout} s")


class Cluster:
    """Server and deployments; workers when asked for. Everything is stopped at exit.

    Args:
        folder: for the database, logs and homes.
        more: environment of everything.

    """

    def __init__(self, folder: Path, **more: str):
        self.port = free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.home = Home(
            folder / "home", self.api,
            PREFECT_WORKER_QUERY_SECONDS="2",
            DO_NOT_TRACK="1",
            **SETTINGS,
            **more,
        )  # fmt: skip
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.server: subprocess.Popen[bytes] | None = None
        self.postgres: Postgres | None = None
        self.proxy: FaultyProxy | None = None  # in front of the workers' S3

    def spawn(self, name: str, *command: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*map(str, command)], cwd=self.folder, env=self.home.environment | environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def start_database(self) -> None:
        self.postgres = Postgres(put_tables(self.folder / "prefect"))
        self.home.environment |= {
            "PREFECT_API_DATABASE_CONNECTION_URL": self.postgres.url,
            "PREFECT_API_DATABASE_MIGRATE_ON_START": "false",
        }

    def start_server(self) -> None:
        self.server = self.spawn(
            "server", sys.executable, "-m", "prefect", "server", "start",
            "--host", "127.0.0.1", "--port", str(self.port),
        )  # fmt: skip
        wait_for(self.answers, 180)

    def answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.api}/health", timeout=2).status_code in {200, 401, 403}
        return False

    def deploy(self) -> None:
        code = "from flows.server.deployments import deploy; deploy()"
        subprocess.run(
            [sys.executable, "-c", code], cwd=REPOSITORY, env=self.home.environment, check=True
        )

    def start_worker(self, count: int = 1, **environment: str) -> subprocess.Popen[bytes]:
        number = len(self.workers)
        worker = self.spawn(
            f"worker{number}", AUTOLABEL, "worker", "--workers", str(count),
            **{"PREFECT_WORKER_NAME": f"w{number}"} | environment,
        )  # fmt: skip
        self.workers.append(worker)
        wait_for(lambda: "'backends'" in str(self.get("work_pools/gpu")), 180)
        return worker

    def flow_run_processes(self) -> list[psutil.Process]:
        """Processes of flow runs."""
        found = []
        for worker in self.workers:
            for one in tree(worker.pid)[1:]:
                with contextlib.suppress(psutil.Error):
                    if "prefect.engine" in one.cmdline():
                        found.append(one)
        return found

    def process_of(self, run_id: str) -> psutil.Process | None:
        """The process of one flow run, which those of other tests may be beside."""
        for one in self.flow_run_processes():
            with contextlib.suppress(psutil.Error):
                if one.environ().get("PREFECT__FLOW_RUN_ID") == run_id:
                    return one
        return None

    def backfill(self, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        return self.home.run(
            "backfill", *arguments, "--model", MICRO, "--no-dataset", "--json",
            code=code, timeout=1800,
        )[0]  # fmt: skip

    def runs(self, run_key: str) -> list[Any]:
        """Shards of a run as the API tells them."""
        body = {"flow_runs": {"tags": {"all_": [f"run:{run_key}"]}}}
        return self.post("flow_runs/filter", body)

    def get(self, path: str) -> Any:
        return self.post(path, None)

    def post(self, path: str, body: dict[str, Any] | None) -> Any:
        """Ask the API; without a body by GET."""
        user, _, password = self.home.environment.get("PREFECT_API_AUTH_STRING", "").partition(":")
        method, auth = "GET" if body is None else "POST", (user, password) if user else None
        answer = httpx.request(method, f"{self.api}/{path}", json=body, auth=auth, timeout=120)
        return answer.raise_for_status().json()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9 of a process and everything below it."""
        for one in reversed(tree(process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()

    def stop(self) -> None:
        for one in [*self.workers, *([self.server] if self.server else [])]:
            if one.poll() is None:
                self.kill(one)
        if self.postgres:
            self.postgres.leave()

    def __enter__(self) -> Cluster:
        try:
            self.start_database()
            self.start_server()
            self.deploy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def every_frame_once(source: str, out: str, run_key: str) -> int:
    """Prove it from the files alone; returns the number of sequences."""
    complete = manifests.complete_keys(manifests.list_manifests(out, run_key))
    count = 0
    for one in discover((source,), FrameSelection.parse("::")):
        name = one.sequence_id
        (key,) = [
            key for at, key in complete if at == name and key.partition("-")[0] == one.content_key
        ]
        manifest = manifests.read_manifest(out, run_key, name, key)
        chunks = (manifests.labels_of(out, manifest, chunk) for chunk in manifest.chunks)
        found = sorted((at.frame.camera, at.frame.index) for chunk in chunks for at in chunk)
        assert found == sorted((frame.camera, frame.index) for frame in one.frames)
        assert manifest.failed == 0
        count += 1
    assert count == len(complete)
    return count


def ended(cluster, run_key) -> set[str]:
    """States of a run's shards when all have ended, else nothing."""
    found = cluster.runs(run_key)
    final = {"COMPLETED", "CANCELLED", "FAILED", "CRASHED"}
    return {one["state_name"] for one in found} if {
        one["state_type"] for one in found
    } <= final else set()  # fmt: skip
