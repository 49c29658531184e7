"""A process that does steps, as the run sees it: what is asked of it, and what comes back."""

from __future__ import annotations

import itertools
import logging
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from sam2_core.machine_errors import first_line
from sam2_core.types import MachineError
from tasks.observe.progress import Progress
from tasks.pipeline.step_interpreters import interpreter_for

if TYPE_CHECKING:
    from tasks.pipeline.chunk import Job

STOP_S = 20.0
# The exit code of a process that could not even tell what failed in it.
UNHEARD = 70

log = logging.getLogger(__name__)


class ProcessDiedError(MachineError):
    """A process that did a step has ended, and nobody knows why."""


class ProcessKilledError(ProcessDiedError):
    """It was killed, as the system does where its memory runs out: no step's fault."""


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
            if self._fresh(kind, 1):
                self._progress.complete_chunk(*value)
        elif kind == "advanced":
            stage, frames, kept = value
            if fresh := self._fresh(f"advanced {stage}", frames):
                self._progress.advance(stage, fresh, kept=kept)

    def _fresh(self, what: str, count: int) -> int:
        """Count more of something; return how much of it an earlier try has not told."""
        known = max(self._before[what], self._now[what])
        self._now[what] += count
        return max(self._now[what] - known, 0)


def _ended(code: int) -> str:
    """Say how a process ended."""
    if code == -signal.SIGKILL:
        return "was killed (signal 9), as the system does where its memory runs out"
    if code == UNHEARD:
        return f"ended, because it could not tell what failed in it (exit code {code})"
    return f"ended with exit code {code}"


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
        died = ProcessDiedError
        try:
            while True:
                number, kind, value = self._connection.recv()
                self._hand_on(number, kind, value)
        except (EOFError, OSError):
            code = self._stop()
            died, how = ProcessKilledError if code == -signal.SIGKILL else died, _ended(code)
        except Exception as error:  # noqa: BLE001 - nobody would hear it any more
            self._process.kill()
            self._stop()
            why = f"{type(error).__name__}: {first_line(error)}"
            how = f"was ended: what it said cannot be read ({why})"
        self._died = died(f"the process {self._process.pid} that worked on this {how}")
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
        """Have it do a step and wait for the result; progress is told on this thread.

        Raises:
            ProcessDiedError: it has ended, or cannot be understood any more.
            Exception: whatever the step raises.

        """
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
        self._stop()

    def _stop(self) -> int:
        """Wait until it has ended, and end it if it does not; return its exit code."""
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def portable(job: Job) -> dict[str, Any]:
    """Return what a job is made of, without what works in this process only."""
    return {one.name: getattr(job, one.name) for one in fields(job) if one.name != "tools"}


def _joined(chain: Sequence[BaseException]) -> BaseException:
    """Return the first of errors, each raised from the next."""
    for error, cause in pairwise(chain):
        error.__cause__ = cause
    return chain[0]
