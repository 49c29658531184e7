"""What a flow run tells whoever supervises its worker: the device is lost, test it before all else.

A file in the worker's folder holds the flow run's process and the reason. Until the worker has been
ended with it, no flow run of that worker begins anything.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path

from sam2_core.cache import write_whole

# Path of the file; workers that somebody else supervises have none.
SICK_VARIABLE = "AUTOLABEL_WORKER_SICK"

log = logging.getLogger(__name__)


def note_sick(why: str) -> None:
    """Note that this process has found its worker's device lost; the first one is heard."""
    path = os.environ.get(SICK_VARIABLE)
    if path and not Path(path).exists():
        try:
            write_whole(Path(path), json.dumps({"process": os.getpid(), "why": why}))
        except OSError as error:  # the worker goes on, and its runs find out for themselves
            log.warning("cannot tell who supervises this worker: %s", error)


def noted_sick() -> str:
    """Return why this process's worker may not work until its device is tested; "" if it may."""
    path = os.environ.get(SICK_VARIABLE)
    return sick_note(Path(path))[1] if path else ""


def sick_note(path: Path) -> tuple[int, str]:
    """Return which process has found a worker's device lost, and why; (0, "") where none has."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text())
        return int(found["process"]), str(found["why"])
    return 0, ""
