"""A flow run's note that its machine has failed, in memory: a full disk does not keep it.

Its worker ends, and the machine is tested before another one takes work.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sam2_core.cache import write_whole

# Path of the note; workers that somebody else started have none.
SICK_VARIABLE = "AUTOLABEL_WORKER_SICK"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Note:
    """That a machine has failed.

    Attributes:
        why: what failed, "" where nothing did.
        read: folders of this machine that the flow run read from.
        written: folders of this machine that it wrote to.

    """

    why: str = ""
    read: Sequence[str] = ()
    written: Sequence[str] = ()


def note_sick(why: str, read: Sequence[str] = (), written: Sequence[str] = ()) -> None:
    """Note that this machine failed under this process's hands; the first note counts.

    Until the worker has been ended, no flow run of it begins anything.

    Args:
        why: what failed.
        read: folders of this machine that were read from.
        written: folders of this machine that were written to.

    """
    path = os.environ.get(SICK_VARIABLE)
    if path and not Path(path).exists():
        try:
            write_whole(Path(path), json.dumps(asdict(Note(why, read, written))))
        except OSError as error:  # the worker goes on, and its runs find out for themselves
            log.warning("its worker cannot be told that this machine has failed: %s", error)


def noted_sick(path: str | Path | None = None) -> Note:
    """Return what a worker's flow run has noted, that of this process by default."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Note(**json.loads(Path(path or os.environ.get(SICK_VARIABLE, "")).read_text()))
    return Note()
