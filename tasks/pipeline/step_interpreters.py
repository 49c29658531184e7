"""Processes for steps, begun before there is a run: with what the last run's ones imported.

Python, ONNX Runtime and CUDA's libraries take seconds until a process can do its first step. Who
waits for a run (flows/machine/spare.py) begins them; the run takes those that fit what it does, and
ends the others. They load models onto the device only where that has plenty of memory left.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.backend_choice import TESTED_VARIABLE, tested_backends
from sam2_core.cores import share_of, usable_cores
from tasks.pipeline.device_memory import free_device_memory_bytes

if TYPE_CHECKING:
    from tasks.masks.model import ModelChoice
    from tasks.pipeline.chunk import Job

# A file in a folder of the worker's own, where its runs say what the next one will probably do.
EXPECTED_VARIABLE = "AUTOLABEL_EXPECTED_FILE"
MEMORY_EACH = 8 << 30
# What the device has left, as a multiple of what the processes may need, before they load models.
SPACIOUS = 2
# What a process prepares itself for that gets no job.
LOADER = "loader"


@dataclass(frozen=True)
class Expected:
    """What processes of a run did, and those of the next one probably will.

    Attributes:
        count: how many there were.
        model, detector, detector_stamp: as in the run's job.
        loaders: how many processes loaded labels.
        load: whether to load models before the job is there, or only to import what loads them.

    """

    count: int
    model: ModelChoice
    detector: str
    detector_stamp: str
    loaders: int = 0
    load: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, job: Job, count: int, loaders: int = 0) -> Expected:
        """Return what a run does."""
        return cls(count, job.model, job.detector, job.stamp.detector, loaders)


def expect_again(expected: Expected) -> None:
    """Leave word of what this run does, where somebody wants to know."""
    if path := os.environ.get(EXPECTED_VARIABLE):
        fresh = Path(f"{path}.{os.getpid()}")
        with contextlib.suppress(OSError):
            fresh.write_bytes(pickle.dumps(expected))
            fresh.replace(path)


def last_expected() -> Expected | None:
    """Return what the last run left word of; None where there was none."""
    try:
        found = pickle.loads(Path(os.environ[EXPECTED_VARIABLE]).read_bytes())  # noqa: S301 - ours
    except (KeyError, OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError):
        return None
    return found if isinstance(found, Expected) else None


def cores_each(count: int) -> int:
    """Return how many cores each of so many processes gets."""
    return max(usable_cores() // count, 1)


class Interpreter:
    """A process that waits for what it is to do.

    Args:
        cores: its share of them.
        expected: what it prepares itself for meanwhile; `LOADER`: for loading labels.

    """

    def __init__(self, cores: int, expected: Expected | str | None = None) -> None:
        self.cores, self.tested, self.expected = cores, tested_backends(), expected
        self.connection, theirs = Pipe()
        command = [sys.executable, "-m", "tasks.pipeline.step_process", str(theirs.fileno())]
        own = share_of(cores) | {TESTED_VARIABLE: ",".join(self.tested)}
        self.process = subprocess.Popen(
            command, env=os.environ | own, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
        )  # fmt: skip
        theirs.close()
        if expected:
            self.connection.send(expected)

    def fits(self, cores: int, job: Job | None) -> bool:
        """Whether it is as one that is begun now for a job (None: for loading), only further."""
        known = self.expected
        if isinstance(known, Expected) and job is not None:
            same = known == Expected.of(job, known.count, known.loaders)
        else:
            same = known == LOADER and job is None
        alike = (self.cores, self.tested) == (cores, tested_backends())
        return same and alike and self.process.poll() is None

    def drop(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


_begun: list[Interpreter] = []


def begin(expected: Expected) -> None:
    """Begin the processes of a run that is expected."""
    load = free_device_memory_bytes() >= SPACIOUS * expected.count * MEMORY_EACH
    atexit.register(drop_rest)
    cores, expected = cores_each(expected.count), replace(expected, load=load)
    _begun.extend(Interpreter(cores, expected) for _ in range(expected.count))
    if expected.loaders:
        cores = cores_each(expected.loaders)
        _begun.extend(Interpreter(cores, LOADER) for _ in range(expected.loaders))


def is_begun(job: Job | None, cores: int) -> bool:
    """Whether `interpreter_for` has one that was begun."""
    return any(one.fits(cores, job) for one in _begun)


def interpreter_for(job: Job | None, cores: int) -> Interpreter:
    """Return a process for a job: one that was begun and fits it, else a new one."""
    for found in [one for one in _begun if (one.expected == LOADER) == (job is None)]:
        _begun.remove(found)
        if found.fits(cores, job):
            return found
        found.drop()
    return Interpreter(cores)


def drop_rest() -> None:
    """End those that were begun and that nobody has taken."""
    while _begun:
        _begun.pop().drop()
