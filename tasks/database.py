"""A MongoDB of our own for FiftyOne: found, started, shared by all commands, stopped by the last.

FiftyOne's built-in service takes many seconds and may attach to another project's database. Ours
listens on 127.0.0.1 only, on a free port, with its data below the cache folder. A user's own
`FIFTYONE_DATABASE_URI` always wins.

Every process that uses the database holds a shared lock on `clients`; who can take it exclusively
is alone. So the last command to end stops the server, and a command that was killed cannot keep it
running for ever: the kernel drops its lock.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.mongod import URI_VARIABLE, arguments, find_mongod, library_environment, why_not

OWNED_VARIABLE = "AUTOLABEL_DATABASE_URI"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
PORT_ATTEMPTS = 5
_QUIET_ENVIRONMENT = {
    "FIFTYONE_DO_NOT_TRACK": "true",
    "FIFTYONE_LOGGING_LEVEL": "WARNING",
    "FIFTYONE_LOGGING_DESTINATION": "stderr",
    "FIFTYONE_SHOW_PROGRESS_BARS": "false",
    "FIFTYONE_REQUIREMENT_ERROR_LEVEL": "2",
}
_held_locks: dict[Path, IO[str]] = {}


@dataclass(frozen=True)
class Server:
    """A running mongod of ours."""

    pid: int
    port: int
    dbpath: str

    @property
    def uri(self) -> str:
        """What FiftyOne connects to."""
        return f"mongodb://127.0.0.1:{self.port}"


def database_folder() -> Path:
    """Where our database lives: `$AUTOLABEL_DATABASE_DIR`, else below the cache folder."""
    chosen = os.environ.get("AUTOLABEL_DATABASE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    return cache_folder() / "mongodb"


def ensure_database() -> str:
    """Make sure that FiftyOne has a database, before `fiftyone` is imported; return its URI.

    Starts our own server when no `FIFTYONE_DATABASE_URI` is set, or joins the one that another
    command started. It is stopped when the last process that called this ends.

    Raises:
        AutolabelError: no mongod for this platform, it does not start, or `fiftyone` was imported
            before without a database URI.

    """
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    chosen = os.environ.get(URI_VARIABLE)
    if chosen and chosen != os.environ.get(OWNED_VARIABLE):
        return chosen
    folder = database_folder()
    if folder in _held_locks and chosen:
        return chosen
    if not chosen and "fiftyone" in sys.modules:
        raise AutolabelError(
            "fiftyone was imported before its database was chosen; call ensure_database() first"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with _start_lock(folder):
        # A process that was forked off, or inherited our URI, joins by taking its own lock.
        server = running_server(folder) or _start(folder)
        if folder not in _held_locks:
            clients = (folder / "clients").open("a+")
            fcntl.flock(clients, fcntl.LOCK_SH)
            _held_locks[folder] = clients
            atexit.register(release_database, folder)
    os.environ[URI_VARIABLE] = os.environ[OWNED_VARIABLE] = server.uri
    # Known to work; FiftyOne would warn at every start that MongoDB 6 is the oldest it supports.
    os.environ.setdefault("FIFTYONE_DATABASE_VALIDATION", "false")
    return server.uri


def release_database(folder: Path | None = None) -> None:
    """Leave the database; the last one to leave stops the server. Runs by itself at exit."""
    folder = folder or database_folder()
    clients = _held_locks.pop(folder, None)
    if clients is None:
        return
    with contextlib.suppress(OSError), _start_lock(folder):
        clients.close()
        if _nobody_else(folder):
            stop_server(folder)
    for name in (URI_VARIABLE, OWNED_VARIABLE):
        os.environ.pop(name, None)


def running_server(folder: Path | None = None) -> Server | None:
    """Return the server of a database folder, if it is alive, is a mongod and answers."""
    folder = folder or database_folder()
    try:
        server = Server(**json.loads((folder / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    if not _is_our_mongod(server) or not _answers(server.port):
        return None
    return server


def stop_server(folder: Path | None = None) -> bool:
    """Stop the server of a database folder cleanly, whoever uses it; False if none ran."""
    folder = folder or database_folder()
    server = running_server(folder)
    (folder / "server.json").unlink(missing_ok=True)
    if server is None:
        return False
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, sent)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(server.pid, os.WNOHANG)
            if not _is_our_mongod(server):
                return True
            time.sleep(0.02)
    raise AutolabelError(f"mongod (process {server.pid}) does not stop; end it by hand")


def _start(folder: Path) -> Server:
    mongod = find_mongod()
    environment = library_environment(mongod, folder)
    dbpath = folder / "data"
    dbpath.mkdir(exist_ok=True)
    log = folder / "mongod.log"
    for _ in range(PORT_ATTEMPTS):
        port = _free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                arguments(mongod, dbpath, port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal is for the command, not for mongod
            )
        server = Server(process.pid, port, str(dbpath))
        if _wait_until_up(process, server):
            temporary = folder / "server.json.new"
            temporary.write_text(json.dumps(asdict(server)))
            temporary.replace(folder / "server.json")
            return server
        if b"Address already in use" not in log.read_bytes():
            break
    raise AutolabelError(why_not(log, dbpath))


def _wait_until_up(process: subprocess.Popen[bytes], server: Server) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        if _answers(server.port):
            return True
        time.sleep(0.05)
    process.kill()
    process.wait()
    return False


def _answers(port: int) -> bool:
    import pymongo
    from pymongo.errors import PyMongoError

    with contextlib.suppress(PyMongoError):
        with pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=500) as client:
            client.admin.command("ping")
        return True
    return False


def _is_our_mongod(server: Server) -> bool:
    """Whether that process still is the server: process ids are used again after a kill."""
    try:
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode(errors="replace")
        state = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        if Path("/proc/self").exists():
            return False
        with contextlib.suppress(OSError):  # no /proc: macOS
            os.kill(server.pid, 0)
            return True
        return False
    return server.dbpath in command.split("\0") and state != "Z"


def _nobody_else(folder: Path) -> bool:
    with (folder / "clients").open("a+") as clients:
        try:
            fcntl.flock(clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _start_lock(folder: Path) -> Iterator[None]:
    with (folder / "start.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
