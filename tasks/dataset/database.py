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
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from filelock import FileLock

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.dataset.lazy_imports import import_later
from tasks.dataset.mongod import URI_VARIABLE, password_file
from tasks.dataset.mongod_process import (
    Server,
    answers,
    command_line,
    left_on,
    served_by,
    start,
    stop,
    was_killed,
)
from tasks.store.private_files import close_file, private_folder

OWNED_VARIABLE = "AUTOLABEL_DATABASE_URI"
VALIDATION_VARIABLE = "FIFTYONE_DATABASE_VALIDATION"
_QUIET_ENVIRONMENT = {
    "FIFTYONE_DO_NOT_TRACK": "true",
    "FIFTYONE_LOGGING_LEVEL": "WARNING",
    "FIFTYONE_LOGGING_DESTINATION": "stderr",
    "FIFTYONE_SHOW_PROGRESS_BARS": "false",
    "FIFTYONE_REQUIREMENT_ERROR_LEVEL": "2",
}
_held_locks: dict[Path, IO[str]] = {}


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
        server = _joined(folder) or start(folder)
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
    with contextlib.suppress(OSError, AutolabelError), _start_lock(folder):
        clients.close()
        if _nobody_else(folder):
            stop_server(folder)
    for name in (URI_VARIABLE, OWNED_VARIABLE):
        os.environ.pop(name, None)


def running_server(folder: Path | None = None) -> Server | None:
    """Return the server of a database folder, if it is alive, is a mongod and answers."""
    server = served_by(folder or database_folder())
    return server if server and answers(server.port) else None


def is_at_hand() -> bool:
    """Whether a database can be asked without starting one: the user's own, or ours that runs."""
    return bool(os.environ.get(URI_VARIABLE)) or running_server() is not None


def stop_server(folder: Path | None = None) -> bool:
    """Stop the server of a database folder cleanly, whoever uses it; False if none ran."""
    server = running_server(folder)
    if server is None:
        return False
    stop(server)
    return True


def end_abandoned(folder: Path | None = None) -> bool:
    """End every server of a database folder that nobody uses: its users were killed.

    Returns:
        Whether there was one.

    Raises:
        AutolabelError: it does not end.

    """
    folder = folder or database_folder()
    if not folder.is_dir():
        return False
    with _start_lock(folder):
        left = left_on(folder) if _nobody_else(folder) else []
        for server in left:
            stop(server)
    return bool(left)


def own_server() -> Server | None:
    """Return the server of ours that this process uses; None where it uses the user's own."""
    if os.environ.get(URI_VARIABLE) != os.environ.get(OWNED_VARIABLE):
        return None
    return served_by(database_folder())


def start_again(server: Server) -> Server:
    """Start a server of ours that was killed where it listened before; who uses it finds it there.

    Raises:
        AutolabelError: somebody has stopped it in order, or it does not start there.

    """
    folder = Path(server.dbpath).parent
    with _start_lock(folder):
        found = _joined(folder)
        if found is None:
            if not was_killed(Path(server.dbpath)):
                raise AutolabelError("the database was stopped (`autolabel review stop`)")
            found = start(folder, server.port)
    if found.port != server.port:
        raise AutolabelError(f"another command has started the database at port {found.port}")
    return found


def _joined(folder: Path) -> Server | None:
    """Return the folder's server, whoever started it."""
    server = served_by(folder)
    if server is None:
        return None
    known = "--auth" in command_line(server) and password_file(folder).exists()
    if known and answers(server.port):
        return server
    if not _nobody_else(folder):
        raise AutolabelError(
            f"mongod (process {server.pid}) is in use and does not answer, or an older version "
            "started it without a password: end what uses it (`autolabel down` if it is up), or "
            "`autolabel review stop`; the next command then starts it again"
        )
    stop(server)
    return None


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
