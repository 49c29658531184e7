"""A Prefect API for one command: the user's where one is configured, else a small one of our own.

Prefect's own temporary server costs the client a second import of the whole server, keeps every
run in one SQLite file that two commands then fight over, and writes to the terminal when it ends.
Ours starts while the command is still planning, has a database file of its own (a copy of one
that was migrated once), runs no background services, and is silent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from flows.machine.last_words import last_words
from flows.server.sign_in import CLIENT_AUTH, SERVER_AUTH, known_auth, new_auth
from sam2_core.cache import make_folder
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.store.own_folder import OwnFolder
from tasks.store.private_files import close_file

START_TIMEOUT_S = 180.0
EVENTS_TIMEOUT_S, STOP_S = 5.0, 3.0
FOLDER_PREFIX = "autolabel-prefect-"
FAILED_LOG = "prefect-server-failed.log"
_CLIENT_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
}


def configured_api() -> str | None:
    """URL of the Prefect API that the user chose, by environment or profile; None for none."""
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    if not (home / "profiles.toml").is_file():
        return None
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    return str(url) if url else None


def add_own_password() -> None:
    """Add the password where the chosen API is the server of `autolabel up`, alive and ours."""
    from flows.machine.services import folder, running_api

    if os.environ.get("PREFECT_API_URL", "").rstrip("/") == running_api():
        os.environ.setdefault(CLIENT_AUTH, known_auth(folder()))


class Api:
    """A Prefect API for what a command has to do: the user's, or one of ours, started on demand.

    Our server ends with the block, and with this process when that is killed.
    """

    def __init__(self, cache_folder: Path) -> None:
        self._cache_folder = cache_folder
        self._folder: OwnFolder | None = None
        self._server: OwnApi | None = None

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Start ours, unless it runs or another one is configured; `wait` before use."""
        if self._server:
            return
        for name, value in _CLIENT_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if configured_api():
            add_own_password()
            return
        self._folder = folder = OwnFolder(FOLDER_PREFIX)
        # Nothing of a run is to be left in the user's home, which may not even be writable.
        os.environ.setdefault("PREFECT_HOME", str(folder.path))
        template = template_of(self._cache_folder)
        self._server = OwnApi(folder.path, template, pass_fds=(folder.lock.fileno(),))

    def wait(self) -> None:
        """Wait until flows can run; raises as `OwnApi.wait`."""
        if self._server:
            self._server.wait()

    def settings(self) -> contextlib.AbstractContextManager[None]:
        """Let Prefect use this API inside the block; `wait` first."""
        return self._server.settings() if self._server else contextlib.nullcontext()

    def end(self) -> None:
        """Stop what was started here, and leave nothing of it."""
        if self._server:
            self._server.stop()
        if self._folder:
            self._folder.remove()


@contextlib.contextmanager
def client_of(url: str, auth: str) -> Iterator[None]:
    """Let Prefect in this process use the server at `url`, signed in as `auth`, inside the block.

    Its events are sent before the block ends: the thread that sends them is made once for a
    process and keeps the server that it met first, which would lose what a second server is owed.
    """
    # Settings are read when `prefect` is imported: the environment would come too late.
    from prefect.events.worker import EventsWorker
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: auth}):
        try:
            yield
        finally:
            EventsWorker.drain_all(timeout=EVENTS_TIMEOUT_S, at_exit=False)


class OwnApi:
    """Our own server, starting.

    Args:
        home: folder of this server alone.
        template: migrated database to start from; made by the first server that finds none.
        pass_fds: descriptors that the server holds, too, for as long as it lives.

    """

    def __init__(self, home: Path, template: Path, pass_fds: Sequence[int] = ()) -> None:
        self._home, self._template, self.url = home, template, ""
        self.auth = new_auth()
        self._log = (home / "server.log").open("w+b")
        begin_with(template, home / "prefect.db")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flows.server.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | self._environment(),
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C is for the command, which then stops its server
        )

    def _environment(self) -> dict[str, str]:
        migrated = (self._home / "prefect.db").is_file()
        return {
            "PREFECT_HOME": str(self._home),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{self._home}/prefect.db",
            "PREFECT_API_DATABASE_MIGRATE_ON_START": str(not migrated).lower(),
            "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
            "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
            SERVER_AUTH: self.auth,
        }

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            AutolabelError: it did not start; says why, and where its log is.

        """
        output = self._process.stdout
        port = output.readline().decode().strip() if output else ""
        self.url = f"http://127.0.0.1:{port}/api"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (port and processes.answers(f"{self.url}/health")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AutolabelError(self._why_not())
            time.sleep(0.05)
        self._keep_template()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use this server; `wait` first."""
        return {"PREFECT_API_URL": self.url, CLIENT_AUTH: self.auth}

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Point Prefect at this server inside the block."""
        with client_of(self.url, self.auth):
            yield

    def stop(self) -> None:
        """Stop the server."""
        processes.end(self._process, STOP_S)
        self._log.close()

    def _keep_template(self) -> None:
        """Keep the migrated, still empty database: the next server starts in half the time.

        A cache that cannot be written costs that time, and nothing else.
        """
        if sound(self._template):
            return
        with contextlib.suppress(OSError, AutolabelError, sqlite3.Error):
            make_folder(self._template.parent)
            temporary = close_file(self._template.with_suffix(f".{uuid.uuid4().hex}.tmp"))
            with (
                contextlib.closing(sqlite3.connect(self._home / "prefect.db")) as source,
                contextlib.closing(sqlite3.connect(temporary)) as copy,
            ):
                source.backup(copy)
            temporary.replace(self._template)

    def _why_not(self) -> str:
        """Tell why the server did not start; its log is kept where it outlives this command."""
        log = Path(self._log.name)
        ended = self._process.poll()
        how = f"no answer in {START_TIMEOUT_S:.0f} s" if ended is None else f"exit status {ended}"
        why = last_words(log.read_text(errors="replace")) or how
        with contextlib.suppress(OSError):
            make_folder(self._template.parent)
            log = Path(shutil.copy(log, self._template.parent / FAILED_LOG))
        return (
            f"Prefect's server did not start: {why}; its log is {log}. Another way is to start one "
            "with `autolabel up` or `prefect server start`, and to set PREFECT_API_URL"
        )


def template_of(cache_folder: Path) -> Path:
    """Where a migrated, empty database of this version of Prefect is, once there is one."""
    return cache_folder / f"prefect-{version('prefect')}.db"


def begin_with(template: Path, database: Path) -> None:
    """Copy a template, if there is a whole one: a hundred migrations take seconds."""
    if sound(template):
        copy = close_file(database.with_suffix(f".{uuid.uuid4().hex}.tmp"))
        shutil.copyfile(template, copy)
        copy.replace(database)


def sound(database: Path) -> bool:
    """Whether that is a whole, migrated database: another would fail every command's requests."""
    if not database.is_file():
        return False
    try:
        with contextlib.closing(
            sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
        ) as opened:
            migrated = opened.execute("SELECT count(*) FROM alembic_version").fetchone()
            checked = opened.execute("PRAGMA quick_check").fetchone()
            return (migrated, checked) == ((1,), ("ok",))
    except sqlite3.Error:
        return False
