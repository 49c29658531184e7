"""Places that results are to be written to, looked at before minutes of measuring."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sam2_core.types import AutolabelError


def check_writable(*, folders: Iterable[Path] = (), files: Iterable[Path] = ()) -> None:
    """Refuse places that cannot be written; folders, and those of files, are made.

    Raises:
        AutolabelError: naming the first such place.

    """
    for file in files:
        _check_folder(file.parent)
        if file.exists():
            _check_file(file)
    for folder in folders:
        _check_folder(folder)


def _check_folder(folder: Path) -> None:
    if re.match(r"\w\w+:/", str(folder)):
        raise AutolabelError(f"{folder}: reports are written to this machine, not to URLs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise AutolabelError(f"cannot write to {folder}: {error.strerror}") from error


def _check_file(file: Path) -> None:
    try:
        with file.open("ab"):
            pass
    except OSError as error:
        raise AutolabelError(f"cannot write {file}: {error.strerror}") from error
