"""Folders and files that only their owner may read: databases, logs, passwords."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from sam2_core.cache import cannot_write, make_folder
from sam2_core.types import AutolabelError

OTHERS = stat.S_IRWXG | stat.S_IRWXO
PRIVATE_UMASK = OTHERS


def private_folder(path: Path) -> Path:
    """Make a folder of ours, or close one that is there already, to everybody but its owner.

    Raises:
        AutolabelError: it cannot be made; says which variable names another place.

    """
    try:
        make_folder(path.parent)
        path.mkdir(exist_ok=True, mode=0o700)
        if path.stat().st_mode & OTHERS:
            with contextlib.suppress(PermissionError):  # another user's: not ours to close
                path.chmod(0o700)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def close_file(path: Path) -> Path:
    """Make a file that only its owner reads, empty where it is new; close one that is there.

    Raises:
        AutolabelError: it cannot be written; says which variable names another place.

    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        if path.stat().st_mode & OTHERS:
            path.chmod(0o600)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, so that a reader sees all of it or nothing.

    Raises:
        AutolabelError: it cannot be written; says which variable names another place.

    """
    _written_beside(path, text).replace(path)


def read_or_create_secret(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in a file; the first of several processes at once makes it.

    Raises:
        AutolabelError: others can read or have made the file, or it cannot be written.

    """
    private_folder(path.parent)
    if not path.exists():
        temporary = _written_beside(path, make())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    return read_secret(path)


def read_secret(path: Path) -> str:
    """Return the secret in a file of ours.

    Raises:
        AutolabelError: it is not there, or others can read or have made it.

    """
    try:
        with path.open() as file:
            status = os.fstat(file.fileno())
            text = file.read().strip()
    except OSError as error:
        raise AutolabelError(f"{path} cannot be read: {error.strerror}") from error
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS or not text:
        raise AutolabelError(
            f"{path} must be a secret of this user alone, and others could have read or made it: "
            "run `autolabel down`, delete the file, then start again; a new one is made"
        )
    return text


def _written_beside(path: Path, text: str) -> Path:
    written = ""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:  # mode 0600
            written = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # of a full disk, which names no file
        if written:
            Path(written).unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    return Path(written)
