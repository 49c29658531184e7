"""A private server that one user's processes share: the first starts it, the last stops it.

It listens on a socket that only its user can reach. Each process that uses it holds a shared lock
on `users.lock`; who can take that lock exclusively is alone. The kernel drops the lock of a process
that was killed, so none keeps the server running for ever.
"""

import fcntl
import hashlib
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO

from filelock import FileLock

from sam2_core.types import AutolabelError
from tasks.store.private_files import close_file, private_folder

LONGEST_SOCKET = 100  # bytes of its path, of which systems take 104 to 108


class SharedServer(ABC):
    """A server with its data in a folder.

    Args:
        folder: closed to other users, or made.

    Attributes:
        folder: the same, absolute and without links.
        changing: held while the server is started or stopped.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder).resolve()
        self.changing = FileLock(close_file(self.folder / "start.lock"))
        self._users: IO[str] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start the server unless it runs, and wait until it answers.

        The caller holds `changing`.
        """

    @abstractmethod
    def stop(self) -> bool:
        """Stop the server in order, its users or not; return whether it ran."""

    def join(self) -> None:
        """Use the server from now on; start it where it does not run."""
        with self.changing:
            users = self._open_users()
            try:
                fcntl.flock(users, fcntl.LOCK_SH)
                self.start()
            except BaseException:
                users.close()
                raise
            self._users = users

    def leave(self) -> None:
        """Use it no more; stop it where it has no other user."""
        if self._users:
            self._users.close()
        self.stop_if_unused()

    def stop_if_unused(self) -> bool:
        """Stop it if it has no user: they were killed, say; return whether it ran."""
        with self.changing, self._open_users() as users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return self.stop()

    def _open_users(self) -> IO[str]:
        return close_file(self.folder / "users.lock").open("a")


def socket_folder(around: Path, longest_name: str) -> Path:
    """Return a private folder for sockets: below another, unless a path there would be too long."""
    here = around / "run"
    if len(os.fsencode(here / longest_name)) <= LONGEST_SOCKET:
        return private_folder(here)
    return short_folder("/tmp", around)  # noqa: S108 - private


def short_folder(base: str, around: Path) -> Path:
    """Return a private folder with a short path, the same in every process.

    Args:
        base: where it is, such as the system's folder for temporary files.
        around: the folder that it stands for.

    Raises:
        AutolabelError: another user has made it.

    """
    digest = hashlib.sha256(os.fsencode(around.resolve())).hexdigest()[:16]
    there = private_folder(Path(base) / f"autolabel-{os.geteuid()}-{digest}")
    if there.stat().st_uid != os.geteuid():
        raise AutolabelError(f"{there} belongs to another user: name a shorter AUTOLABEL_CACHE")
    return there
