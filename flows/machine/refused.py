"""Workers of this machine that take no work, and why: `status` and `doctor` tell it.

Whoever supervises workers keeps a file of its own beside the services' logs, which counts for as
long as that process lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping

from flows.machine.services import folder
from sam2_core.cache import write_whole
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.store.private_files import private_folder

ADVICE = (
    "their devices are tested again every minute; `nvidia-smi -L` lists what is here. Where "
    "CUDA_VISIBLE_DEVICES or the software is what is wrong, mend it, then stop the workers and "
    "start them again: `autolabel down`, then `autolabel up`, which alone leaves them as they run"
)


def _prefix() -> str:
    """Begin a file's name with the machine, where several share a home."""
    return f"refused-{socket.gethostname()}-"


def note_refused(reasons: Mapping[str, str]) -> None:
    """Keep why workers of this process take no work, by their names; none: forget it.

    Best effort: workers go on where nothing can be written.
    """
    file = folder() / f"{_prefix()}{os.getpid()}.json"
    with contextlib.suppress(OSError, AutolabelError):
        if not reasons:
            file.unlink(missing_ok=True)
            return
        private_folder(folder())
        born = processes.born(os.getpid())
        write_whole(file, json.dumps({"born": born, "reasons": dict(reasons)}))


def refused_workers() -> dict[str, str]:
    """Return why workers of this machine take no work, by their names."""
    found: dict[str, str] = {}
    for file in sorted(folder().glob(f"{_prefix()}*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(file.read_text())
            if processes.born(int(file.stem.rpartition("-")[2])) == told["born"]:
                found |= told["reasons"]
            else:  # whoever wrote it was killed
                file.unlink()
    return found
