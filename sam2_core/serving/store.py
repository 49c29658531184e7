"""Arrays under ids, in memory that the server's processes share: features and open images.

Triton runs the encoder and the decoder in processes of their own, and each instance of them in one.
So what one has made lies in files of a memory file system, under a bound: what was not used for
longest goes first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from sam2_core.types import AutolabelError

Arrays = dict[str, np.ndarray[Any, Any]]
_ALIGNED = 64
# To write a file takes milliseconds; whoever holds the lock for longer does not work any more.
_LOCK_S, _LOCK_POLL_S = 20.0, 0.002
_NAME = re.compile(r"[0-9a-f-]{1,100}")


class SharedStore:
    """A bounded folder of arrays; any process may write, read and evict.

    Args:
        folder: below /dev/shm, usually; made when it is not there, for this user alone.
        most_bytes: of all files together.

    Raises:
        AutolabelError: the folder is another user's.

    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.lstat().st_uid != os.geteuid():
            raise AutolabelError(f"{folder} belongs to another user, who could read and replace it")

    def put(self, name: str, arrays: Mapping[str, np.ndarray[Any, Any]], facts: Any = None) -> None:
        """Keep arrays, and facts that JSON can hold, under an id; what is there already stays.

        Raises:
            AutolabelError: they are more than the whole store may hold, or the process that writes
                to it has stopped.

        """
        if self._touch(name):
            return
        header, chunks, total = _laid_out(arrays, facts)
        if total > self._most_bytes:
            raise AutolabelError(
                f"{total / 1e6:.0f} MB are more than the server keeps "
                f"({self._most_bytes / 1e6:.0f} MB): serve with a larger --cache-mb"
            )
        with self._locked():
            self._make_room(total)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
                file.write(header)
                for start, array in chunks:
                    file.seek(start)
                    file.write(array.data)
                file.truncate(total)
            os.utime(file.name, ns=_now())
            Path(file.name).replace(self._path(name))

    def get(self, name: str) -> tuple[Arrays, Any] | None:
        """Return read-only arrays and facts of an id, or None where they are no longer there.

        The arrays are views of shared memory. They stay whole when the id is evicted meanwhile.
        """
        if not self._touch(name):
            return None
        try:
            whole = np.memmap(self._path(name), np.uint8, "r")
        except (FileNotFoundError, ValueError):
            return None
        length = int(whole[:8].view("<u8")[0])
        described = json.loads(bytes(whole[8 : 8 + length]))
        arrays = {
            key: np.ndarray(shape, dtype, whole, start)
            for key, (dtype, shape, start) in described["arrays"].items()
        }
        return arrays, described["facts"]

    def __contains__(self, name: str) -> bool:
        return self._touch(name)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise AutolabelError(f"{name[:40]!r} is no id of this server")
        return self._folder / name

    def _touch(self, name: str) -> bool:
        """Note that an id is in use; tells whether it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(name), ns=_now())
            return True
        return False

    def _entries(self) -> list[tuple[int, int, Path]]:
        """List what is there, longest unused first: time, bytes, path."""
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.name != ".lock":
                    found.append((status.st_mtime_ns, status.st_size, path))
        return sorted(found)

    def _make_room(self, needed: int) -> None:
        entries = self._entries()
        held = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if held + needed <= self._most_bytes:
                break
            path.unlink(missing_ok=True)
            held -= size

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with FileLock(self._folder / ".lock").acquire(_LOCK_S, _LOCK_POLL_S):
                yield
        except Timeout as error:
            raise AutolabelError(
                f"another process of the server holds {self._folder} for more than {_LOCK_S:g} s: "
                "is it stopped? Start the server anew"
            ) from error


def _now() -> tuple[int, int]:
    """Return the time for a file: by itself the system gives many files the same one."""
    now_ns = time.time_ns()
    return now_ns, now_ns


def _laid_out(
    arrays: Mapping[str, np.ndarray[Any, Any]], facts: Any
) -> tuple[bytes, list[tuple[int, np.ndarray[Any, Any]]], int]:
    """Return a file's first bytes, where in it each array lies, and its length."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # The header's length depends on the offsets in it: leave room for their digits.
    room = 8 + 200 * (len(whole) + 1) + len(json.dumps(facts))
    start = -(-room // _ALIGNED) * _ALIGNED
    described, chunks = {}, []
    for name, array in whole.items():
        described[name] = (array.dtype.str, array.shape, start)
        chunks.append((start, array))
        start += -(-array.nbytes // _ALIGNED) * _ALIGNED
    text = json.dumps({"arrays": described, "facts": facts}).encode()
    return len(text).to_bytes(8, "little") + text, chunks, max(start, room)
