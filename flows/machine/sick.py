"""What a flow run tells whoever supervises its worker: this machine failed, test it first.

A file of the worker's own holds the flow run's process, the reason, and which storages it worked
with. Until the worker has been ended with it, no flow run of that worker begins anything.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sam2_core.cache import write_whole

# Path of the file; workers that somebody else supervises have none.
SICK_VARIABLE = "AUTOLABEL_WORKER_SICK"
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of ours in it is looked at before it is used

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Note:
    """What a flow run noted.

    Attributes:
        process: its process id; 0 where none has noted anything.
        why: what failed, "" where nothing did.
        read: folders of this machine that it read from.
        written: folders of this machine that it wrote to.

    """

    process: int = 0
    why: str = ""
    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


NOTHING = Note()


def unfailing_folder() -> Path | None:
    """Return a private folder in memory, for notes that have to be written when a disk is full.

    None where this system has no such place.
    """
    folder = MEMORY / f"autolabel-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return folder if mine and not status.st_mode & 0o077 else None


def note_sick(why: str, read: Sequence[str] = (), written: Sequence[str] = ()) -> None:
    """Note that this machine failed under this process's hands; the first one is heard.

    Args:
        why: what failed.
        read: folders of this machine that were read from.
        written: folders of this machine that were written to.

    """
    path = os.environ.get(SICK_VARIABLE)
    if path and not Path(path).exists():
        note = Note(os.getpid(), why, tuple(read), tuple(written))
        try:
            write_whole(Path(path), json.dumps(asdict(note)))
        except OSError as error:  # the worker goes on, and its runs find out for themselves
            log.warning("cannot tell who supervises this worker: %s", error)


def noted_sick() -> str:
    """Return why this process's worker may not work until its machine is tested; "" if it may."""
    path = os.environ.get(SICK_VARIABLE)
    return sick_note(Path(path)).why if path else ""


def sick_note(path: Path) -> Note:
    """Return what a worker's flow run has noted; an empty note where none has."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text())
        read, written = tuple(found["read"]), tuple(found["written"])
        return Note(int(found["process"]), str(found["why"]), read, written)
    return NOTHING
