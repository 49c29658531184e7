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
from pathlib import Path

from flows.machine.services import folder
from flows.machine.sick import unfailing_folder
from sam2_core.cache import write_whole
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.store.private_files import private_folder

ADVICE = (
    "what failed is tested again and again, once a minute at last, and a worker that is well takes "
    "work by itself: make room where a disk is full, see `nvidia-smi -L` for GPUs. Where "
    "CUDA_VISIBLE_DEVICES or the software is what is wrong, mend it, then stop the workers and "
    "start them again: `autolabel down`, then `autolabel up`, which alone leaves them as they run"
)


def _prefix() -> str:
    """Begin a file's name with the machine, where several share a home."""
    return f"refused-{socket.gethostname()}-"


def _folders() -> list[Path]:
    """Return where notes are: beside the services' logs, or in memory where a disk takes none."""
    unfailing = unfailing_folder()
    return [folder(), *([unfailing] if unfailing else [])]


def note_refused(reasons: Mapping[str, str]) -> None:
    """Keep why workers of this process take no work, by their names; none: forget it.

    Best effort: workers go on where nothing can be written.
    """
    note = {"born": processes.born(os.getpid()), "of": str(folder()), "reasons": dict(reasons)}
    written = not reasons
    for where in _folders():
        file = where / f"{_prefix()}{os.getpid()}.json"
        with contextlib.suppress(OSError, AutolabelError):
            if written:
                file.unlink(missing_ok=True)
            else:
                private_folder(where)
                write_whole(file, json.dumps(note))
                written = True


def refused_workers() -> dict[str, str]:
    """Return why workers of this machine take no work, by their names."""
    found: dict[str, str] = {}
    for where in _folders():
        with contextlib.suppress(OSError):
            for file in sorted(where.glob(f"{_prefix()}*.json")):
                found |= _reasons_in(file, everyones=where != folder())
    return found


def _reasons_in(file: Path, *, everyones: bool) -> dict[str, str]:
    """Read the reasons of one process; of a place for every cache, only those of this cache."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(file.read_text())
        if processes.born(int(file.stem.rpartition("-")[2])) != told["born"]:
            file.unlink()  # whoever wrote it was killed
        elif not everyones or told["of"] == str(folder()):
            return dict(told["reasons"])
    return {}
