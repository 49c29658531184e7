"""A Prefect server as `autolabel up` runs it, on a free port, but it plans nothing by itself."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator

from flows.server.postgres import home
from flows.server.sign_in import CLIENT_AUTH, SERVER_AUTH, new_auth
from tasks import processes
from tasks.store.private_files import close_file, private_folder


class PrefectServer:
    """Started when made; `wait` before use, and `close` it."""

    def __init__(self) -> None:
        self.auth = new_auth()
        own = {
            SERVER_AUTH: self.auth, "PREFECT_HOME": str(home()),
            # Tests tell when a schedule makes runs; every five seconds it would, too.
            "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
        }  # fmt: skip
        self.log = close_file(private_folder(home()) / "tests.log")
        with socket.create_server(("127.0.0.1", 0)) as listener, self.log.open("wb") as log:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            self.process = subprocess.Popen(
                processes.python("flows.server.process", "server"), stdin=listener.fileno(),
                stdout=log, stderr=log, env=os.environ | own, start_new_session=True,
            )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {"PREFECT_API_URL": self.url, CLIENT_AUTH: self.auth}

    def wait(self) -> None:
        deadline = time.monotonic() + 180
        while not processes.answers(f"{self.url}/health"):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def close(self) -> None:
        processes.end(self.process, 20)


@contextlib.contextmanager
def client_of(url: str, auth: str) -> Iterator[None]:
    """Let Prefect in this process use the server at `url`, signed in as `auth`, inside the block.

    Its events are sent before the block ends: the thread that sends them is made once for a
    process and keeps the server that it met first, which would lose what a second server is owed.
    """
    from prefect.events.worker import EventsWorker
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    settings = {
        PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: auth,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }  # fmt: skip
    with temporary_settings(settings):
        try:
            yield
        finally:
            EventsWorker.drain_all(timeout=5, at_exit=False)
