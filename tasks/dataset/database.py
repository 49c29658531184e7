"""A MongoDB of our own for FiftyOne: shared by all commands, stopped by the last.

FiftyOne's built-in service takes many seconds and may attach to another project's database. Ours
has its data below the cache folder. A user's own `FIFTYONE_DATABASE_URI` always wins.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from pathlib import Path

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.dataset.lazy_imports import import_later
from tasks.dataset.mongod import URI_VARIABLE, Mongod

OWNED_VARIABLE = "AUTOLABEL_DATABASE_URI"
VALIDATION_VARIABLE = "FIFTYONE_DATABASE_VALIDATION"
ADVICE = "every decision that has its mark is in storage: nothing is lost"
_QUIET_ENVIRONMENT = {
    "FIFTYONE_DO_NOT_TRACK": "true",
    "FIFTYONE_LOGGING_LEVEL": "WARNING",
    "FIFTYONE_LOGGING_DESTINATION": "stderr",
    "FIFTYONE_SHOW_PROGRESS_BARS": "false",
    "FIFTYONE_REQUIREMENT_ERROR_LEVEL": "2",
}
_joined: dict[Path, Mongod] = {}


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
    if not chosen and "fiftyone" in sys.modules:
        raise AutolabelError(
            "fiftyone was imported before its database was chosen; call ensure_database() first"
        )
    folder = database_folder()
    if folder not in _joined:  # also in a process that was forked off, or inherited our URI
        server = Mongod(folder)
        server.join()
        _joined[folder] = server
        atexit.register(release_database, folder)
    uri = _joined[folder].uri
    os.environ[URI_VARIABLE] = os.environ[OWNED_VARIABLE] = uri
    # Known to work; FiftyOne would warn at every start that MongoDB 6 is the oldest it supports.
    os.environ.setdefault(VALIDATION_VARIABLE, "false")
    return uri


def release_database(folder: Path | None = None) -> None:
    """Leave the database; the last one to leave stops the server. Runs by itself at exit."""
    server = _joined.pop(folder or database_folder(), None)
    if server is None:
        return
    with contextlib.suppress(OSError, AutolabelError):
        server.leave()
    for name in (URI_VARIABLE, OWNED_VARIABLE):
        os.environ.pop(name, None)


def running_server() -> Mongod | None:
    """Return our server, if it runs."""
    folder = database_folder()
    server = Mongod(folder) if folder.is_dir() else None
    return server if server and server.process_id else None


def is_at_hand() -> bool:
    """Whether a database can be asked without starting one: the user's own, or ours that runs."""
    return bool(os.environ.get(URI_VARIABLE)) or running_server() is not None


class DatabaseKeeper:
    """Starts our database again where the system kills it; leaves a user's own database alone.

    Labels and decisions are in storage, so all that is at stake is the time of who waits.
    """

    def __init__(self) -> None:
        self._server = _joined.get(database_folder())
        self._process_id = self._server.process_id if self._server else None

    def look(self) -> str:
        """Return what was done about the database in words; "" where nothing was.

        Raises:
            AutolabelError: it was stopped, or does not start again; says why.

        """
        server, started = self._server, time.monotonic()
        if server is None or server.process_id == self._process_id:
            return ""
        try:
            with server.changing:
                if not server.process_id and not server.was_killed:
                    raise AutolabelError("the database was stopped (`autolabel review stop`)")
                server.start()
        except AutolabelError as error:
            raise AutolabelError(
                f"FiftyOne's database is gone: {error}. {ADVICE.capitalize()}; the next command "
                "that needs it starts it"
            ) from error
        self._process_id, took_s = server.process_id, time.monotonic() - started
        return f"FiftyOne's database was killed, and started again within {took_s:.1f} s; {ADVICE}"
