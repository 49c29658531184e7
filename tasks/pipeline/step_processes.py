"""Steps in processes of their own: a GPU is faster than the one thread at a time that Python runs.

Beside a GPU and enough cores, chunks are detected and segmented by several processes that share the
device, and labels are loaded by one more. The run's own process only joins steps and waits. What
goes between them is small: chunks with their boxes and counts, never pixels or masks.

A process that dies, or to which its device is lost, costs its chunks a second try in a new one.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from sam2_core.backends.onnxruntime_backend import is_out_of_memory
from sam2_core.cores import usable_cores
from sam2_core.machine_errors import causes
from sam2_core.types import AutolabelError, DeviceLostError, DeviceMemoryError, MachineError
from tasks.observe.progress import Progress
from tasks.pipeline.step_interpreters import (
    MEMORY_EACH,
    cores_each,
    interpreter_for,
    is_begun,
)

if TYPE_CHECKING:
    from tasks.pipeline.chunk import Job

# Chooses how many processes share a GPU; 0: none beside the run's own.
COUNT_VARIABLE = "AUTOLABEL_DEVICE_PROCESSES"
# With four, 16 cores keep an H200 busy (BENCHMARKS.md). On PyTorch each compiles for itself.
MOST, MOST_ON_TORCH, CORES_EACH = 4, 2, 4
STOP_S = 20.0

log = logging.getLogger(__name__)


class ProcessDiedError(MachineError):
    """A process that did a step has ended, and nobody knows why."""


def wanted_processes(backend: str) -> int:
    """Return how many processes are to share the device of a backend; 0: this one does it all.

    Raises:
        AutolabelError: AUTOLABEL_DEVICE_PROCESSES is no such number.

    """
    chosen = os.environ.get(COUNT_VARIABLE, "").strip()
    if chosen:
        if not chosen.isdecimal():
            raise AutolabelError(
                f"{COUNT_VARIABLE}={chosen}: expected how many processes share a GPU, 0 for none "
                "beside the run's own"
            )
        return int(chosen)
    if backend == "onnxruntime-cpu":
        return 0
    from sam2_core.load import device_memory_bytes

    most = MOST_ON_TORCH if backend == "torch" else MOST
    count = min(most, usable_cores() // CORES_EACH, device_memory_bytes() // MEMORY_EACH)
    return count if count > 1 else 0


class Told:
    """Progress of a step that may be done twice: what its second try tells again is left out."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._now: Counter[str] = Counter()
        self._before: Counter[str] = Counter()

    def again(self) -> None:
        """Begin anew."""
        self._before, self._now = self._before | self._now, Counter()

    def tell(self, kind: str, value: Any) -> None:
        """Tell what came from the process."""
        if kind == "log":
            _log(*value)
        elif kind == "chunk_done":
            self._progress.complete_chunk(*value)
        elif kind == "advanced":
            stage, frames, kept = value
            known = max(self._before[stage], self._now[stage])
            self._now[stage] += frames
            fresh = self._now[stage] - known
            if fresh > 0:
                self._progress.advance(stage, fresh, kept=kept)


def _ended(code: int) -> str:
    """Say how a process ended."""
    if code == -signal.SIGKILL:
        return "was killed (signal 9), as the system does where its memory runs out"
    return f"ended with exit code {code}"


def _subject(given: Sequence[Any]) -> str:
    """Say whose step it is, where it is a chunk's."""
    chunk = getattr(given[0], "chunk", None) if given else None
    if chunk is None:
        return ""
    first, last = chunk.frames[0], chunk.frames[-1]
    place = "/".join(filter(None, (first.sequence_id, first.camera)))
    return f"{place}, frames {first.index} to {last.index}: "


def _log(name: str, level: int, text: str) -> None:
    logging.getLogger(name).log(level, "%s", text)


class StepProcess:
    """One process; any thread may have it do something.

    Args:
        job: what its steps get first; None where they get none.
        cores: its share of them.

    """

    def __init__(self, job: Job | None, cores: int) -> None:
        interpreter = interpreter_for(job, cores)
        self._connection, self._process = interpreter.connection, interpreter.process
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        self._waiting: dict[int, tuple[str, SimpleQueue[tuple[str, Any]]]] = {}
        self._died: ProcessDiedError | None = None
        self.dismissed = False  # ended though nothing was wrong with it
        self._send(None if job is None else portable(job))
        threading.Thread(target=self._receive, name="step-process", daemon=True).start()

    def _send(self, what: Any) -> None:
        try:
            with self._lock:
                self._connection.send(what)
        except OSError:  # it has ended, which `_receive` notices
            log.debug("process %d does not listen", self._process.pid)

    def _receive(self) -> None:
        try:
            while True:
                number, kind, value = self._connection.recv()
                self._hand_on(number, kind, value)
        except (EOFError, OSError):
            code = self._process.wait()
        self._died = ProcessDiedError(
            f"the process {self._process.pid} that worked on this {_ended(code)}"
        )
        for _, answers in tuple(self._waiting.values()):
            answers.put(("failed", [self._died]))

    def _hand_on(self, number: int, kind: str, value: Any) -> None:
        answers = self._waiting.get(number)
        if kind == "log":  # of any thread there: the thread of a run here knows which run it is
            answers = next(iter(tuple(self._waiting.values())), None)
            if answers is None:
                _log(*value)
        if answers is not None:
            answers[1].put((kind, value))

    def busy(self, name: str) -> tuple[int, int]:
        """Return how many steps of this name it does, and how many of any."""
        doing = [one for one, _ in tuple(self._waiting.values())]
        return doing.count(name), len(doing)

    def run(self, step: Callable[..., Any], given: Sequence[Any], progress: Told) -> Any:
        """Have it do a step and wait for the result; progress is told on this thread."""
        number, answers = next(self._numbers), SimpleQueue[tuple[str, Any]]()
        self._waiting[number] = step.__name__, answers
        try:
            if self._died:
                raise self._died
            self._send((number, step, tuple(given)))
            while True:
                kind, value = answers.get()
                if kind == "done":
                    return value
                if kind == "failed":
                    raise _joined(value)
                progress.tell(kind, value)
        finally:
            del self._waiting[number]

    def ask_to_end(self) -> None:
        """Let it end at once, whatever it does; `end` waits for that."""
        self._send(None)

    def end(self) -> None:
        """End it at once, whatever it does."""
        self.ask_to_end()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def portable(job: Job) -> dict[str, Any]:
    """Return what a job is made of, without what works in this process only."""
    return {one.name: getattr(job, one.name) for one in fields(job) if one.name != "tools"}


def _joined(chain: Sequence[BaseException]) -> BaseException:
    """Return the first of errors, each raised from the next."""
    for error, cause in pairwise(chain):
        error.__cause__ = cause
    return chain[0]


class StepProcesses:
    """Processes that share the work of steps; they start when they are first needed.

    Args:
        count: how many.
        job: as for `StepProcess`.

    Attributes:
        lost: why the device is lost to new processes, too; None while it works.

    """

    def __init__(self, count: int, job: Job | None = None) -> None:
        self.count, self._job = count, job
        self._cores = cores_each(count)
        self._lock, self._leaving = threading.Lock(), threading.Lock()
        self._processes: list[StepProcess] = []
        self.lost: DeviceLostError | None = None

    def take_begun(self) -> None:
        """Take those that were begun before the run; others would want to know more first."""
        with self._lock:
            while len(self._processes) < self.count and is_begun(self._job, self._cores):
                self._processes.append(StepProcess(self._job, self._cores))

    def start(self) -> None:
        """Start those that do not run, so that they are ready when there is work."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        while len(self._processes) < self.count:
            self._processes.append(StepProcess(self._job, self._cores))

    def run(self, step: Callable[..., Any], *given: Any, progress: Progress | None = None) -> Any:
        """Have the least busy process do a step.

        If that process dies of it, or loses its device, another one is started for this step alone.
        Where the device has too little memory for several processes, one stays.

        Args:
            step: a function of a module; it gets the job first, where there is one.
            given: what else it gets.
            progress: hears what the step tells.

        Raises:
            ProcessDiedError: the second process died, too.
            DeviceLostError: the device is lost to new processes as well.
            Exception: whatever the step raises.

        """
        if self.lost:
            raise self.lost
        told = Told(progress or Progress())
        process, only = self._least_busy(step.__name__)
        try:
            return process.run(step, given, told)
        except (ProcessDiedError, DeviceLostError) as error:
            self._end([process])
            again = self._shared if process.dismissed else self._alone
            log.warning("%s%s: once more, in another process", _subject(given), error)
        except Exception as error:
            if only or not _lacks_memory(error):
                raise
            self._leave_one()
            again = self._shared
        told.again()
        return again(step, given, told)

    def _least_busy(self, name: str) -> tuple[StepProcess, bool]:
        with self._lock:
            self._start()
            return min(self._processes, key=lambda one: one.busy(name)), self.count == 1

    def _shared(self, step: Callable[..., Any], given: Sequence[Any], told: Told) -> Any:
        return self._least_busy(step.__name__)[0].run(step, given, told)

    def _alone(self, step: Callable[..., Any], given: Sequence[Any], told: Told) -> Any:
        """Do a step where nothing else can be hurt by it."""
        process = StepProcess(self._job, self._cores)
        try:
            return process.run(step, given, told)
        except DeviceLostError as error:
            self.lost = error
            raise
        finally:
            process.end()

    def _leave_one(self) -> None:
        with self._leaving:  # whoever comes second waits until there is memory
            with self._lock:
                self.count, others = 1, self._processes[1:]
            for one in others:
                one.dismissed = True
            if others:
                log.warning("the device has too little memory for several processes: one goes on")
            self._end(others)

    def _end(self, processes: Sequence[StepProcess]) -> None:
        with self._lock:
            mine = [one for one in processes if one in self._processes]
            self._processes = [one for one in self._processes if one not in mine]
        for process in mine:  # leaving a device takes a while: all of them at a time
            process.ask_to_end()
        for process in mine:
            process.end()

    def end(self) -> None:
        """End all of them."""
        self._end(tuple(self._processes))


def _lacks_memory(error: Exception) -> bool:
    return any(
        isinstance(one, DeviceMemoryError) or (isinstance(one, Exception) and is_out_of_memory(one))
        for one in causes(error)
    )
