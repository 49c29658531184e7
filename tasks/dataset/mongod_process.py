"""A mongod of ours: found by its own lock file and command line, started, ended.

Who may do so, and when, is `database`'s to know: whoever starts or ends one here holds its lock.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sam2_core.types import AutolabelError
from tasks import processes
from tasks.dataset.mongod import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
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
from tasks.store.private_files import private_folder, read_secret

ATTEMPTS = 5


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


def served_by(folder: Path) -> Server | None:
    """Find the mongod of ours on this folder, by its own lock file and command line."""
    dbpath = folder / "data"
    with contextlib.suppress(OSError, ValueError):
        found = Server(int((dbpath / "mongod.lock").read_text()), 0, str(dbpath))
        words = command_line(found)
        if "--port" in words:
            found = replace(found, port=int(words[words.index("--port") + 1]))
        return found if words else None
    return None


def left_on(folder: Path) -> list[Server]:
    """Find every mongod of ours on this folder, also one that has not written its lock file yet."""
    import psutil

    dbpath = str(folder / "data")
    found = (Server(pid, 0, dbpath) for pid in psutil.pids())
    return [server for server in found if command_line(server)]


def is_alive(server: Server) -> bool:
    """Whether that process still is the server: process ids are used again after a kill."""
    words = command_line(server)
    return bool(words) and (not server.port or str(server.port) in words)


def was_killed(dbpath: Path) -> bool:
    """Whether a process id is still in the lock file: a mongod that ends in order empties it."""
    try:
        return bool((dbpath / "mongod.lock").read_text().strip())
    except OSError:
        return False


def stop(server: Server) -> None:
    """End it in order.

    Raises:
        AutolabelError: it does not end.

    """
    if not processes.stop(server.pid, lambda: is_alive(server), STOP_TIMEOUT_S):
        raise AutolabelError(f"mongod (process {server.pid}) does not stop; end it by hand")


def start(folder: Path, port: int = 0) -> Server:
    """Start a server; 0 takes any free port.

    Where the last one on this folder was killed, the sizes of its collections are made right.

    Raises:
        AutolabelError: no mongod for this platform, or it does not start.

    """
    mongod = find_mongod()
    environment = library_environment(mongod, folder)
    dbpath = private_folder(folder / "data")
    log = folder / "mongod.log"
    if was_killed(dbpath):
        note_killed(folder)
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
                make_counts_true(folder, server.uri)
                return server
            processes.end(process, STOP_TIMEOUT_S)
            password_file(folder).unlink()  # of another database: this one gets a new one
            continue
        if not _gave_way(folder, log) and b"Address already in use" not in log.read_bytes():
            break
    raise AutolabelError(why_not(log, dbpath))


def _gave_way(folder: Path, log: Path) -> bool:
    """Stop a mongod of ours that came up meanwhile; its starter is gone: we hold the lock."""
    left = served_by(folder) if b"DBPathInUse" in log.read_bytes() else None
    if left:
        stop(left)
    return left is not None


def _wait_until_up(process: subprocess.Popen[bytes], server: Server) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        if answers(server.port):
            return True
        time.sleep(0.05)
    process.kill()
    process.wait()
    return False


def answers(port: int) -> bool:
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


def command_line(server: Server) -> list[str]:
    """Words of the process, when it is this user's and serves this folder; else none."""
    words = processes.command_line(server.pid)
    if "--dbpath" not in words:
        return []
    served = Path(words[words.index("--dbpath") + 1])
    return words if served.resolve() == Path(server.dbpath).resolve() else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


log = logging.getLogger(__name__)
MARK = "killed"
# Until then whoever starts the database waits for the sizes; those of large datasets come later.
AWAITED_S = 2.0
_TRIES = 3  # a collection that is being written to looks wrong, too
_MONGODBS_OWN = {"admin", "config", "local"}


def note_killed(folder: Path) -> None:
    """Note that the server on this folder was killed: its next start makes the sizes right."""
    with contextlib.suppress(OSError):  # a full disk, say: then they stay as they are
        (folder / MARK).touch(mode=0o600)


def make_counts_true(folder: Path, uri: str) -> None:
    """Make the sizes of all collections right where a server on this folder was killed before.

    Beside what the caller goes on to do where it takes longer than `AWAITED_S`; a process that ends
    before leaves the note, and with it the rest, to the next start.
    """
    if not (folder / MARK).exists():
        return
    working = threading.Thread(target=_work, args=(folder, uri), name="true counts", daemon=True)
    working.start()
    working.join(AWAITED_S)


def _work(folder: Path, uri: str) -> None:
    import pymongo
    from pymongo.errors import PyMongoError

    try:
        with pymongo.MongoClient(uri) as client:
            for name in set(client.list_database_names()) - _MONGODBS_OWN:
                database = client[name]
                for one in database.list_collection_names(filter={"type": "collection"}):
                    if _is_wrong(database[one]):
                        database.command("validate", one)
        (folder / MARK).unlink(missing_ok=True)
    except (PyMongoError, OSError) as error:
        log.warning("len() of a dataset may be wrong until the next start: %s", error)


def _is_wrong(collection: Any) -> bool:
    for _ in range(_TRIES):
        before = collection.estimated_document_count()
        counted = collection.count_documents({}, hint="_id_")
        after = collection.estimated_document_count()
        if min(before, after) <= counted <= max(before, after):
            return False
    return True
