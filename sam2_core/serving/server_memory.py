"""Shared memory of Triton servers: what it is called, and that nothing of it stays behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the server's own way to its models
_PREFIX = "autolabel-triton-"
# Of the folder with the repository and the log of a server.
_FOLDER = "autolabel-serve-"


def new_prefix() -> str:
    """Return a prefix for the shared memory of one server of this process."""
    return f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:6]}"


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for a server of this process."""
    return tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-")


def remove_shared_memory(prefix: str) -> None:
    """Remove what a server, or its models, left in shared memory."""
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        _remove(path)


def remove_left_over() -> None:
    """Remove what servers of this user left whose process was killed."""
    for folder, prefix in ((SHARED_MEMORY, _PREFIX), (Path(tempfile.gettempdir()), _FOLDER)):
        for path in folder.glob(f"{prefix}*"):
            owner = path.name.removeprefix(prefix).partition("-")[0]
            with contextlib.suppress(FileNotFoundError):
                mine = path.stat().st_uid == os.getuid()
                if mine and owner.isdigit() and not psutil.pid_exists(int(owner)):
                    _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
