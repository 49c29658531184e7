"""A MongoDB of our own for FiftyOne: found, started, shared by all commands, stopped by the last.

FiftyOne's built-in service takes many seconds and may attach to another project's database. Ours
listens on 127.0.0.1 only, on a free port, with its data below the cache folder, and asks for a
password that is in a file beside them. A user's own `FIFTYONE_DATABASE_URI` always wins.

Every process that uses the database holds a shared lock on `clients`; who can take it exclusively
is alone. So the last command to end stops the server, and a command that was killed cannot keep it
running for ever: the kernel drops its lock.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from filelock import FileLock

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.dataset.later import import_later
from tasks.dataset.mongod import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    URI_VARIABLE,
    USER,
    arguments,
    find_mongod,
    guarded,
    library_environment,
    password_file,
    set_password,
    spawn,
    version_of,
    why_not,
)
from tasks.store.private_files import close_file, private_folder, read_secret

OWNED_VARIABLE = "AUTOLABEL_DATABASE_URI"
VALIDATION_VARIABLE = "FIFTYONE_DATABASE_VALIDATION"
ATTEMPTS = 5
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
        """What FiftyOne connects to, password included: for the environment of processes only."""
        before, after = self.uri_around_password
        return f"{before}{read_secret(self.password_file)}{after}"

    @property
    def uri_around_password(self) -> tuple[str, str]:
        """What stands before the password in the URI, and what after it."""
        return f"mongodb://{USER}:", f"@127.0.0.1:{self.port}/?authSource=admin"

    @property
    def password_file(self) -> Path:
        """Where the password is, for this user's eyes only."""
        return password_file(Path(self.dbpath).parent)


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
    import_later()
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
    with _start_lock(folder):
        # A process that was forked off, or inherited our URI, joins by taking its own lock.
        server = _joined(folder) or _start(folder)
        if folder not in _held_locks:
            clients = close_file(folder / "clients").open("a+")
            fcntl.flock(clients, fcntl.LOCK_SH)
            _held_locks[folder] = clients
            atexit.register(release_database, folder)
    os.environ[URI_VARIABLE] = os.environ[OWNED_VARIABLE] = server.uri
    # Known to work; FiftyOne would warn at every start that MongoDB 6 is the oldest it supports.
    os.environ.setdefault(VALIDATION_VARIABLE, "false")
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
    server = _served_by(folder or database_folder())
    return server if server and _answers(server.port) else None


def stop_server(folder: Path | None = None) -> bool:
    """Stop the server of a database folder cleanly, whoever uses it; False if none ran."""
    server = running_server(folder)
    if server is None:
        return False
    _stop(server)
    return True


def own_server() -> Server | None:
    """Return the server of ours that this process uses; None where it uses the user's own."""
    if os.environ.get(URI_VARIABLE) != os.environ.get(OWNED_VARIABLE):
        return None
    return _served_by(database_folder())


def is_alive(server: Server) -> bool:
    """Whether that process still is the server: process ids are used again after a kill."""
    words = _command_line(server)
    return bool(words) and (not server.port or str(server.port) in words)


def start_again(server: Server) -> Server:
    """Start a server of ours that was killed where it listened before; who uses it finds it there.

    Raises:
        AutolabelError: somebody has stopped it in order, or it does not start there.

    """
    folder = Path(server.dbpath).parent
    with _start_lock(folder):
        found = _joined(folder)
        if found is None:
            if not _was_killed(server):
                raise AutolabelError("the database was stopped (`autolabel review stop`)")
            found = _start(folder, server.port)
    if found.port != server.port:
        raise AutolabelError(f"another command has started the database at port {found.port}")
    return found


def _was_killed(server: Server) -> bool:
    """Whether its process id is still in its lock file: a mongod that ends in order empties it."""
    try:
        return bool((Path(server.dbpath) / "mongod.lock").read_text().strip())
    except OSError:
        return False


def _stop(server: Server) -> None:
    if not processes.stop(server.pid, lambda: is_alive(server), STOP_TIMEOUT_S):
        raise AutolabelError(f"mongod (process {server.pid}) does not stop; end it by hand")


def _joined(folder: Path) -> Server | None:
    """Return the folder's server, whoever started it."""
    server = _served_by(folder)
    if server is None:
        return None
    known = "--auth" in _command_line(server) and password_file(folder).exists()
    if known and _answers(server.port):
        return server
    if not _nobody_else(folder):
        raise AutolabelError(
            f"mongod (process {server.pid}) is in use and does not answer, or an older version "
            "started it without a password: end what uses it (`autolabel down` if it is up), or "
            "`autolabel review stop`; the next command then starts it again"
        )
    _stop(server)
    return None


def _served_by(folder: Path) -> Server | None:
    """Find the mongod of ours on this folder, by its own lock file and command line."""
    dbpath = folder / "data"
    with contextlib.suppress(OSError, ValueError):
        found = Server(int((dbpath / "mongod.lock").read_text()), 0, str(dbpath))
        words = _command_line(found)
        if "--port" in words:
            found = replace(found, port=int(words[words.index("--port") + 1]))
        return found if words else None
    return None


def _start(folder: Path, port: int = 0) -> Server:
    """Start a server; 0 takes any free port."""
    mongod = find_mongod()
    environment = library_environment(mongod, folder)
    dbpath = private_folder(folder / "data")
    log = folder / "mongod.log"
    for _ in range(ATTEMPTS):
        if not password_file(folder).exists():
            try:
                set_password(mongod, folder, environment)
            except AutolabelError:
                if _gave_way(folder, log):
                    continue
                raise
        at = port or _free_port()
        process = spawn(arguments(mongod, dbpath, *guarded(at)), log, environment)
        server = Server(process.pid, at, str(dbpath))
        if _wait_until_up(process, server):
            if _lets_us_in(server):
                return server
            processes.end(process, STOP_TIMEOUT_S)
            password_file(folder).unlink()  # of another database: this one gets a new one
            continue
        if not _gave_way(folder, log) and b"Address already in use" not in log.read_bytes():
            break
    raise AutolabelError(why_not(log, dbpath))


def _gave_way(folder: Path, log: Path) -> bool:
    """Stop a mongod of ours that came up meanwhile; its starter is gone: we hold the lock."""
    left = _served_by(folder) if b"DBPathInUse" in log.read_bytes() else None
    if left:
        _stop(left)
    return left is not None


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
    """Whether a server answers there; 0 is one that listens on a socket alone."""
    from pymongo.errors import PyMongoError

    with contextlib.suppress(PyMongoError):
        return bool(port and version_of(f"mongodb://127.0.0.1:{port}", 500))
    return False


def _lets_us_in(server: Server) -> bool:
    from pymongo.errors import OperationFailure

    try:
        return bool(version_of(server.uri))
    except OperationFailure:
        return False


def _command_line(server: Server) -> list[str]:
    """Words of the process, when it is this user's and serves this folder; else none."""
    words = processes.command_line(server.pid)
    if "--dbpath" not in words:
        return []
    served = Path(words[words.index("--dbpath") + 1])
    return words if served.resolve() == Path(server.dbpath).resolve() else []


def _nobody_else(folder: Path) -> bool:
    with close_file(folder / "clients").open("a+") as clients:
        try:
            fcntl.flock(clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _start_lock(folder: Path) -> Iterator[None]:
    with FileLock(close_file(private_folder(folder) / "start.lock")):
        yield


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
