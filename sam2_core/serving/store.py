"""Images under ids, in memory that the server's processes share.

Each instance of a model is a process of its own. So the images that clients have sent lie in files
of a memory file system, under a bound: what was not used for longest goes first.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from sam2_core.types import AutolabelError, ImageArray

# To write a file takes milliseconds; whoever holds the lock for longer does not work any more.
_LOCK_S, _LOCK_POLL_S = 20.0, 0.002
# Of a file of NumPy's, before the pixels.
_HEADER_BYTES = 128
_NAME = re.compile(r"[0-9a-f-]{1,100}")


class ImageStore:
    """A bounded folder of images; any process may write, read and evict.

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

    def put(self, name: str, pixels: ImageArray) -> None:
        """Keep an image under an id; what is there already stays.

        Raises:
            AutolabelError: it is more than the whole store may hold, or the process that writes to
                it has stopped.

        """
        if self._touch(name):
            return
        if pixels.nbytes + _HEADER_BYTES > self._most_bytes:
            raise AutolabelError(
                f"{pixels.nbytes / 1e6:.0f} MB are more than the server keeps "
                f"({self._most_bytes / 1e6:.0f} MB): serve with a larger --cache-mb"
            )
        with self._locked():
            self._make_room(pixels.nbytes + _HEADER_BYTES)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
                np.save(file, pixels)
            os.utime(file.name, ns=_now())
            Path(file.name).replace(self._path(name))

    def get(self, name: str) -> ImageArray | None:
        """Return the image of an id, or None where it is no longer there.

        It is a read-only view of shared memory, and stays whole when the id is evicted meanwhile.
        """
        if not self._touch(name):
            return None
        try:
            pixels: ImageArray = np.load(self._path(name), mmap_mode="r")
        except FileNotFoundError:
            return None
        return pixels

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
