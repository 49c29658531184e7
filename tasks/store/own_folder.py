"""A temporary folder that goes with its owner: a killed command's is removed by the next one.

The owner holds a lock in it, and so do the processes that it hands the lock to. The kernel drops a
lock with its last holder; process ids would be used again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import IO

LOCK = "owner.lock"
MOST_TRIES = 5
# A folder without a lock is of an older version, or was made a moment ago.
UNLOCKED_KEPT_S = 24 * 3600.0


class OwnFolder:
    """A new folder below the system's temporary one.

    Args:
        prefix: what its name begins with; folders named so whose owner is gone are removed first.
        base: the folder around; the system's temporary one when None.

    Attributes:
        path: the folder.
        lock: hand its descriptor to a child (`pass_fds`) that uses the folder, too.

    """

    def __init__(self, prefix: str, base: Path | None = None) -> None:
        sweep(prefix, base)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
            with contextlib.suppress(FileNotFoundError):
                self.lock: IO[str] = (self.path / LOCK).open("a+")
                fcntl.flock(self.lock, fcntl.LOCK_SH)
                if (self.path / LOCK).exists():  # nobody swept it before it was locked
                    return

    def remove(self) -> None:
        """Remove the folder and what is in it, also while another thread still writes there."""
        for _ in range(MOST_TRIES):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                break
        self.lock.close()


def sweep(prefix: str, base: Path | None = None) -> list[Path]:
    """Remove the folders of owners that are gone; returns them."""
    swept = []
    for path in sorted((base or Path(tempfile.gettempdir())).glob(f"{prefix}*")):
        with contextlib.suppress(OSError):
            if _ours(path) and _remove_abandoned(path):
                swept.append(path)
    return swept


def _ours(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _remove_abandoned(path: Path) -> bool:
    if not (path / LOCK).exists():
        if time.time() - path.stat().st_mtime < UNLOCKED_KEPT_S:
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    with (path / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # Locked all the while: an owner that has not got to its lock yet finds the file gone.
        shutil.rmtree(path, ignore_errors=True)
    return True
