"""Our files on this machine: whom they are open to, and what killed processes left of them.

Databases, logs and passwords are open to their owner alone. A temporary folder goes with its owner,
who holds a lock in it, and so do the processes that it hands the lock to: the kernel drops a lock
with its last holder, where process ids would be used again. What a writer was killed at is written
anew under another temporary name; a writer that lives has its file for seconds, so old ones go.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from filelock import FileLock

from sam2_core.cache import cannot_write, make_folder, write_whole
from sam2_core.types import AutolabelError
from tasks.wording import counted

PRIVATE_UMASK = stat.S_IRWXG | stat.S_IRWXO
LOCK = "owner.lock"
KEPT_S, LOCKED_WITHIN_S = 24 * 3600.0, 60.0
# Folders that we write below `--out`: with one of each run, and others; elsewhere nothing is ours.
_BY_RUN = ("manifests", "partial", "tracks", "reports", "attempts", "quarantine")
_OTHER_FOLDERS = ("labels", "reviews", "roots")

log = logging.getLogger(__name__)


def private_folder(path: Path) -> Path:
    """Make a folder of ours, or close one that is there already, to everybody but its owner.

    Raises:
        AutolabelError: it cannot be made; says which variable names another place.

    """
    try:
        make_folder(path.parent)
        path.mkdir(exist_ok=True, mode=0o700)
        if path.stat().st_mode & PRIVATE_UMASK:
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
        if path.stat().st_mode & PRIVATE_UMASK:
            path.chmod(0o600)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, so that a reader sees all of it or nothing.

    Raises:
        AutolabelError: it cannot be written; says which variable names another place.

    """
    try:
        write_whole(path, text)  # of mode 0600
    except OSError as error:  # of a full disk, which names no file
        raise cannot_write(path, error) from error


def read_or_create_secret(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in a file; the first of several processes at once makes it.

    Raises:
        AutolabelError: others can read or have made the file, or it cannot be written.

    """
    private_folder(path.parent)
    with FileLock(close_file(path.with_suffix(".lock"))):
        if not path.exists():
            write_private(path, make())
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
    if status.st_uid != os.geteuid() or status.st_mode & PRIVATE_UMASK or not text:
        raise AutolabelError(
            f"{path} must be a secret of this user alone, and others could have read or made it: "
            "run `autolabel down`, delete the file, then start again; a new one is made"
        )
    return text


class OwnFolder:
    """A new folder below the system's temporary one.

    Args:
        prefix: what its name begins with; folders named so whose owner is gone are removed first.

    Attributes:
        path: the folder.
        lock: hand its descriptor to a child (`pass_fds`) that uses the folder, too.

    """

    def __init__(self, prefix: str) -> None:
        sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self.lock: IO[str] = (self.path / LOCK).open("a+")
        fcntl.flock(self.lock, fcntl.LOCK_SH)

    def remove(self) -> None:
        """Remove the folder and what is in it, also while another thread still writes there."""
        for _ in range(5):
            shutil.rmtree(self.path, ignore_errors=True)
        self.lock.close()


def sweep(prefix: str) -> list[Path]:
    """Remove the folders of owners that are gone; returns them."""
    swept = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        # Locked by its owner, another user's, or gone meanwhile.
        with contextlib.suppress(OSError), (path / LOCK).open() as lock:
            status = os.fstat(lock.fileno())
            # One of a moment ago: its owner may be about to lock it.
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < LOCKED_WITHIN_S:
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            swept.append(path)
    return swept


def remove_abandoned(out_uri: str, run_key: str = "", sequences: Iterable[str] = ()) -> int:
    """Remove what killed writers left below a local `--out`, a day ago or earlier.

    Regular files with the name of a temporary one, in folders of ours; links to folders are not
    followed. Object stores have none: there a write is one request. What cannot be removed stays.

    Args:
        out_uri: storage of the labels.
        run_key: only what is this run's; everything when empty.
        sequences: ids of those whose labels to look at, where a run is named.

    Returns:
        How many there were.

    """
    from tasks.store import storage

    if not storage.is_local(out_uri):
        return 0
    out, removed = storage.local_path(out_uri), 0
    roots = [out / name for name in (*_BY_RUN, *_OTHER_FOLDERS)]
    if run_key:
        roots = [out / "labels" / sequence for sequence in sequences]
        roots += [out / name / run_key for name in _BY_RUN]
    before_s = time.time() - KEPT_S
    below = (Path(folder, name) for root in roots for folder, _, names in os.walk(root)
             for name in names)  # fmt: skip
    for path in filter(lambda file: storage.is_temporary(file.name), below):
        with contextlib.suppress(OSError):  # renamed or removed meanwhile, or another user's
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_mtime < before_s:
                path.unlink()
                removed += 1
    if removed:
        log.info("%s of killed writers removed below %s", counted(removed, "file"), out)
    return removed
