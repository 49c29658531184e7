"""A MongoDB of our own for FiftyOne: shared by all commands, stopped by the last.

FiftyOne's built-in service takes many seconds and may attach to another project's database. Ours
has its data below the cache folder. A user's own `FIFTYONE_DATABASE_URI` always wins.

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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from filelock import FileLock

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.dataset.lazy_imports import import_later
from tasks.dataset.mongod import (
    URI_VARIABLE,
    Server,
    answers,
    served_by,
    start,
    stop,
    was_killed,
)
from tasks.store.private_files import close_file, private_folder

OWNED_VARIABLE = "AUTOLABEL_DATABASE_URI"
VALIDATION_VARIABLE = "FIFTYONE_DATABASE_VALIDATION"
MOST_STARTS = 5
ADVICE = "every decision that has its mark is in storage: nothing is lost"
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
    return Path(chosen).expanduser() if chosen else cache_folder() / "mongodb"


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
    clients = _held_locks.pop(folder or database_folder(), None)
    if clients is None:
        return
    clients.close()
    with contextlib.suppress(OSError, AutolabelError):
        end_abandoned(folder)
    for name in (URI_VARIABLE, OWNED_VARIABLE):
        os.environ.pop(name, None)


def running_server(folder: Path | None = None) -> Server | None:
    """Return the server of a database folder, if it runs."""
    return served_by(folder or database_folder())


def is_at_hand() -> bool:
    """Whether a database can be asked without starting one: the user's own, or ours that runs."""
    return bool(os.environ.get(URI_VARIABLE)) or running_server() is not None


def stop_server(folder: Path | None = None) -> bool:
    """Stop the server of a database folder in order, whoever uses it; False if none ran."""
    server = running_server(folder)
    if server:
        stop(server)
    return server is not None


def end_abandoned(folder: Path | None = None) -> bool:
    """Stop the server of a database folder if nobody uses it: its users were killed, say.

    Returns:
        Whether there was one.

    Raises:
        AutolabelError: it does not end.

    """
    folder = folder or database_folder()
    if not folder.is_dir():
        return False
    with _start_lock(folder):
        return _nobody_else(folder) and stop_server(folder)


def _joined(folder: Path) -> Server | None:
    """Return the folder's server, whoever started it; one that nobody uses must answer."""
    server = served_by(folder)
    if server is None or answers(server):
        return server
    if not _nobody_else(folder):
        raise AutolabelError(
            f"mongod (process {server.pid}) is in use and does not answer: end what uses it "
            "(`autolabel down` if it is up), or `autolabel review stop`; the next command then "
            "starts it again"
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


class DatabaseKeeper:
    """Starts our database again where the system kills it; leaves a user's own database alone.

    Labels and decisions are in storage, so all that is at stake is the time of who waits.
    """

    def __init__(self) -> None:
        ours = os.environ.get(URI_VARIABLE) == os.environ.get(OWNED_VARIABLE)
        self.server = running_server() if ours else None
        self._left = MOST_STARTS

    def look(self) -> str:
        """Return what was done about the database in words; "" where nothing was.

        Raises:
            AutolabelError: it is gone for good; says why.

        """
        if self.server is None or self.server.is_alive():
            return ""
        began, folder = time.monotonic(), self.server.folder
        try:
            if not self._left:
                raise AutolabelError(f"it was killed {MOST_STARTS + 1} times: is memory short?")
            self._left -= 1
            with _start_lock(folder):
                found = _joined(folder)
                if found is None and not was_killed(folder):
                    raise AutolabelError("the database was stopped (`autolabel review stop`)")
                self.server = found or start(folder)
        except AutolabelError as error:
            raise AutolabelError(
                f"FiftyOne's database is gone: {error}. {ADVICE.capitalize()}; the next command "
                "that needs it starts it"
            ) from error
        took = time.monotonic() - began
        return f"FiftyOne's database was killed, and started again within {took:.1f} s; {ADVICE}"
