"""Which Prefect API a command talks to: the user's, that of `autolabel up`, else one of its own.

The command's own starts while it is still planning, runs no background services, is silent, and
ends with the command. It is on the same database as the server of `up`, where its runs stay.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from flows.machine.programs import TIED
from flows.machine.services import folder, last_words, running_api
from flows.server.postgres import home
from flows.server.sign_in import CLIENT_AUTH, SERVER_AUTH, known_auth, new_auth
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.store.private_files import close_file, private_folder

START_TIMEOUT_S = 180.0
EVENTS_TIMEOUT_S, STOP_S = 5.0, 20.0
_CLIENT_ENVIRONMENT = {
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
}
_SERVER_ENVIRONMENT = {
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
}


def configured_api() -> str | None:
    """URL of the Prefect API that the user chose, by environment or profile; None for none."""
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    if not (home / "profiles.toml").is_file():
        return None
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value()


def use_api() -> str:
    """Make Prefect's client use a server that is there.

    Without this Prefect would start a temporary server that has no deployments and no workers.

    Raises:
        AutolabelError: no server is configured and `autolabel up` has started none, or an older
            version's has no password.

    """
    found = api_that_runs()
    if not found:
        raise AutolabelError(
            "no Prefect server: start one with `autolabel up`, or set PREFECT_API_URL to a "
            "running one"
        )
    return found


def api_that_runs() -> str | None:
    """Choose the user's API, else that of `up`, whose password we know; returns its URL."""
    chosen, ours = configured_api(), running_api()
    if ours and (chosen or ours).rstrip("/") == ours:
        choose_api(ours, os.environ.get(CLIENT_AUTH) or known_auth(folder()))
    return chosen or ours


def choose_api(url: str, auth: str) -> None:
    """Make this process and its children use an API, even where Prefect is imported already."""
    os.environ |= {"PREFECT_API_URL": url, CLIENT_AUTH: auth}
    if "prefect" in sys.modules:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


@contextlib.contextmanager
def client_of(url: str, auth: str) -> Iterator[None]:
    """Let Prefect in this process use the server at `url`, signed in as `auth`, inside the block.

    Its events are sent before the block ends: the thread that sends them is made once for a
    process and keeps the server that it met first, which would lose what a second server is owed.
    """
    # Settings are read when `prefect` is imported: the environment would come too late.
    from prefect.events.worker import EventsWorker
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    settings = {
        PREFECT_API_URL: url,
        PREFECT_API_AUTH_STRING: auth,
        # Nobody looks for them here, and a flow would end up to a second later.
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with temporary_settings(settings):
        try:
            yield
        finally:
            EventsWorker.drain_all(timeout=EVENTS_TIMEOUT_S, at_exit=False)


class Api:
    """A Prefect API for what a command has to do: one that runs, or one of ours, on demand.

    Ours is on this user's database. It ends when closed, and with this process when that is killed.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.url, self.auth = "", new_auth()

    def begin(self) -> None:
        """Start ours, unless another one is configured or runs; `wait` before use."""
        os.environ |= _CLIENT_ENVIRONMENT | os.environ  # what the user has set stays
        if not (self._process or api_that_runs()):
            # Nothing of a run is to be left in the user's home, which may not even be writable.
            os.environ.setdefault("PREFECT_HOME", str(home()))
            self.begin_own()

    def begin_own(self) -> None:
        """Start ours; `wait` before use."""
        self._log = close_file(private_folder(home()) / "command.log")  # the newest command's
        own = _SERVER_ENVIRONMENT | {SERVER_AUTH: self.auth, "PREFECT_HOME": str(home())}
        with socket.create_server(("127.0.0.1", 0)) as listener, self._log.open("wb") as log:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            self._process = subprocess.Popen(
                [*TIED, *processes.python("flows.server.process", "command")],
                stdin=listener.fileno(), stdout=log, stderr=log, env=os.environ | own,
                start_new_session=True,  # Ctrl-C is for the command, which then stops it
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until the server answers; another one than ours is asked once.

        Raises:
            AutolabelError: ours did not start, says why, and where its log is; or another one
                does not answer.

        """
        if not self._process:
            from flows.server.client import asked_once, connected

            with asked_once(), connected() as client:
                client.hello()
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._process and not processes.answers(f"{self.url}/health"):
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                why = last_words(self._log) or (
                    f"no answer in {START_TIMEOUT_S:.0f} s"
                    if ended is None
                    else f"exit status {ended}"
                )
                raise AutolabelError(
                    f"Prefect's server did not start: {why}; its log is {self._log}. Another way "
                    "is to start one with `prefect server start`, and to set PREFECT_API_URL"
                )
            time.sleep(0.05)

    def settings(self) -> contextlib.AbstractContextManager[None]:
        """Let Prefect use this API inside the block; `wait` first."""
        return client_of(self.url, self.auth) if self._process else contextlib.nullcontext()

    def close(self) -> None:
        """Stop what was started here, with the database where nobody else uses it."""
        if self._process:
            processes.end(self._process, STOP_S)
