"""Whether this machine itself can work, besides its devices: folders, memory, local storages.

Only what is the machine's counts: a file that is missing, or that its own disk cannot read any
more while others can be read, is no reason to stop.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from sam2_core.cache import cache_folder, make_folder
from sam2_core.machine_errors import is_machine_error

WRITTEN_BYTES = 16 << 20
LEAST_MEMORY_BYTES = 512 << 20
MOST_SAMPLES = 8
DEEPEST = 4


def host_problem(read: Iterable[str] = (), written: Iterable[str] = ()) -> str:
    """Return why this machine cannot work, "" where nothing is found.

    Args:
        read: folders of storages of this machine, where something has to be readable.
        written: folders of storages of this machine that have to be writable.

    """
    temporary = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    tests: list[Callable[[], str]] = [
        partial(_own_unwritable, temporary),
        partial(_own_unwritable, cache_folder()),
        _memory_short,
        *(partial(_storage_unwritable, Path(one)) for one in written),
        *(partial(_storage_unreadable, Path(one)) for one in read),
    ]
    return next(filter(None, (test() for test in tests)), "")


def _own_unwritable(folder: Path) -> str:
    """Say why a file cannot be written into a folder of ours and read back from it."""
    try:
        make_folder(folder)
        _write_and_read(folder)
    except OSError as error:
        return f"{folder} cannot be written and read back: {error.strerror or error}"
    return ""


def _write_and_read(folder: Path) -> None:
    data = os.urandom(1 << 20)
    with tempfile.TemporaryFile(prefix=".self-test-", suffix=".tmp", dir=folder) as file:
        for _ in range(WRITTEN_BYTES // len(data)):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        while part := file.read(len(data)):
            if part != data:
                raise OSError(errno.EIO, "what is read back is not what was written")


def _memory_short() -> str:
    """Look, and take none: what asks for more than there is may be the end of others."""
    import psutil

    free = psutil.virtual_memory().available
    if free >= LEAST_MEMORY_BYTES:
        return ""
    return f"memory is short: {free >> 20} MB are free, {LEAST_MEMORY_BYTES >> 20} MB are needed"


def _storage_unwritable(folder: Path) -> str:
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            _write_and_read(folder)
    except OSError as error:
        if is_machine_error(error):
            return f"{folder} cannot be written and read back: {error.strerror or error}"
    return ""


def _storage_unreadable(folder: Path) -> str:
    """Say why nothing that is looked at in a folder can be read; one thing that can is enough."""
    problem, entries = "", _first_entries(folder)
    while True:
        try:
            path = next(entries, None)
            if path:
                _read_some(path)
        except OSError as error:
            if not is_machine_error(error):
                return ""
            problem = f"nothing in {folder} can be read: {error.strerror or error}"
        else:
            return "" if path else problem


def _first_entries(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, MOST_SAMPLES):
            yield Path(entry.path)


def _read_some(path: Path, deep: int = 0) -> None:
    """Read from a file, or from the first one of a folder."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        with path.open("rb") as file:
            file.read(1)
    elif stat.S_ISDIR(mode) and deep < DEEPEST:
        inner = next(_first_entries(path), None)
        if inner:
            _read_some(inner, deep + 1)
