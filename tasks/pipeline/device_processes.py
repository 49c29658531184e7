"""Processes that share a GPU: faster than one process, because of Python's lock.

Beside a GPU and enough cores, pieces of sequences are detected and segmented by several processes
that share the device, and tracks are made and labels loaded by others. The run's own process opens
sequences, downloads, matches imported boxes and writes manifests. What goes between them is small:
chunks with their boxes and counts, never pixels or masks.

A process that dies takes its pool with it; what the pool was doing is done once more, each in a
process of its own, so that only what kills a process fails.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

from sam2_core import redaction
from sam2_core.backend_choice import tested_backends
from sam2_core.devices import TESTED_VARIABLE
from sam2_core.machine import DEVICE_PROCESSES, share_of, usable_cores
from sam2_core.machine_errors import causes, is_machine_error
from sam2_core.types import AutolabelError, DeviceLostError, DeviceMemoryError, MachineError
from tasks.errors import error_text
from tasks.observe.progress import DETECT, SEGMENT
from tasks.pipeline.chunk import ChunkState, detect_chunk
from tasks.pipeline.run_context import Job
from tasks.processes import SAFE_PATH, collect_seldom

# With four, 16 cores keep an H200 busy, whatever the backend (docs/BENCHMARKS.md).
MOST, CORES_EACH, MEMORY_EACH = 4, 4, 8 << 30

_SPAWN = multiprocessing.get_context("spawn")
_environment = threading.Lock()  # held while processes inherit what is set for them
Result = TypeVar("Result")
_job: Job | None = None  # of this process, where it belongs to a pool
log = logging.getLogger(__name__)


class ProcessDiedError(MachineError):
    """A process that did a step has ended, for an unknown reason."""


class ProcessKilledError(ProcessDiedError):
    """It was killed, as the system does where its memory runs out: no step's fault."""


@contextlib.contextmanager
def ready(job: Job) -> Iterator[None]:
    """Load, while other things start, what a run on a GPU needs; end it with the block.

    That is processes beside this one where the machine has the cores and the device the memory for
    them, else models in this process. Blocks may be nested; the outermost one counts.

    Beside a GPU, labels are loaded by processes of their own, which leave Python's lock to what
    feeds the device.
    """
    context, backend = job.context, job.model.backend
    if context.processes or context.loader:
        yield
        return
    count = wanted_processes(backend)
    if count:
        context.processes = DeviceProcesses(count, job)
        context.labeling = threading.Semaphore(count + 1)
    else:
        warm_in_background(job)
    if count or (backend != "onnxruntime-cpu" and DEVICE_PROCESSES.read() is None):
        context.loader = DeviceProcesses(max(count // 2, 1), job, with_models=False)
    try:
        yield
    finally:
        for processes in filter(None, (context.processes, context.loader)):
            processes.end()
        context.processes = context.loader = None


def warm_in_background(job: Job) -> None:
    """Load a run's detector and mask model on a thread, and run each once on the device.

    Only for a GPU: on a CPU this would take the cores from what starts meanwhile. What fails here
    fails again, and is reported, where it is needed.
    """
    if job.model.backend != "onnxruntime-cpu":
        # With this thread's context, Prefect shows what it logs with its run.
        threading.Thread(target=copy_context().run, args=(_warm, job), name="warm").start()


def _warm(job: Job) -> None:
    try:
        if not job.params.boxes:
            job.load_detector().warm_up()
        job.context.segmenters.load(job.model).backend.warm_up()
    except Exception as error:  # noqa: BLE001 - reported where the model is needed
        log.debug("not warm: %s", error)


def wanted_processes(backend: str) -> int:
    """Return how many processes are to share the device of a backend; 0: this one does it all.

    Raises:
        AutolabelError: AUTOLABEL_DEVICE_PROCESSES is no such number.

    """
    chosen = DEVICE_PROCESSES.read()
    if chosen is not None:
        return chosen
    if backend == "onnxruntime-cpu":
        return 0
    from sam2_core.devices import device_memory_bytes

    count = min(MOST, usable_cores() // CORES_EACH, device_memory_bytes() // MEMORY_EACH)
    return count if count > 1 else 0


class DeviceProcesses:
    """A pool of processes with models of their own.

    Args:
        count: how many.
        job: what their steps get first, with a context of their process.
        with_models: whether they load its models, and so at once.

    """

    def __init__(self, count: int, job: Job | None, *, with_models: bool = True) -> None:
        self.count, self._begun_with = count, (job, with_models)
        self._lock, self._alone = threading.Lock(), threading.Lock()
        self._pool = _Pool(count, self._begun_with) if with_models else None

    def run(self, step: Callable[..., Result], *values: Any) -> Result:
        """Have a process do a step; alone in another one if its process dies or loses the device.

        Args:
            step: a function of a module; it gets the job first.
            values: what else it gets.

        Raises:
            ProcessDiedError: the second process died, too.
            DeviceLostError: the device is lost to new processes as well.
            Exception: whatever the step raises.

        """
        with self._lock:
            pool = self._pool = self._pool or _Pool(self.count, self._begun_with)
        try:
            return pool.run(step, values)
        except (ProcessDiedError, DeviceLostError) as error:
            self._end(pool)
            log.warning("%s: once more, in another process", error)
        with self._alone:  # nothing else is hurt by it
            alone = _Pool(1, self._begun_with)
            try:
                return alone.run(step, values)
            finally:
                alone.end()

    def _end(self, pool: _Pool) -> None:
        with self._lock:  # the next pool has the device when this one has left it
            if self._pool is pool:
                self._pool = None
            pool.end()

    def end(self) -> None:
        """End all of them, whatever they do."""
        if self._pool is not None:
            self._end(self._pool)


class _Pool:
    """Processes that are started, and ended, together."""

    def __init__(self, count: int, begun_with: tuple[Job | None, bool]) -> None:
        self._executor = ProcessPoolExecutor(count, _SPAWN, _begin, begun_with)
        share = share_of(max(usable_cores() // count, 1))
        inherited = share | {TESTED_VARIABLE: ",".join(tested_backends()), SAFE_PATH: "1"}
        with _environment:
            own = {name: os.environ[name] for name in inherited if name in os.environ}
            os.environ.update(inherited)
            before = set(multiprocessing.active_children())
            try:
                for _ in range(count):  # each starts one
                    self._executor.submit(bool)
            finally:
                for name in inherited:
                    del os.environ[name]
                os.environ.update(own)
            self._processes: list[BaseProcess] = [
                process for process in multiprocessing.active_children() if process not in before
            ]

    def run(self, step: Callable[..., Result], values: Sequence[Any]) -> Result:
        try:
            result, errors, logged = self._executor.submit(_do, step, values).result()
        except RuntimeError as error:  # the pool is broken, or was ended meanwhile
            raise self._died(error) from None
        for record in logged:  # here, where it is known which run's it is
            logging.getLogger(record.name).log(record.levelno, "%s", record.getMessage())
        for raised, cause in pairwise(errors):
            raised.__cause__ = cause
        if errors:
            raise errors[0]
        return cast("Result", result)

    def _died(self, error: Exception) -> ProcessDiedError:
        self._executor.shutdown()  # it joins them: two threads that join one may miss its exit code
        codes = {process.exitcode for process in self._processes} - {None, 0, -signal.SIGTERM}
        if -signal.SIGKILL in codes:
            how = "was killed (signal 9), as the system does where its memory runs out"
            return ProcessKilledError(f"a process that worked on this {how}")
        how = f"ended with exit code {codes.pop()}" if codes else f"was ended: {error}"
        return ProcessDiedError(f"a process that worked on this {how}")

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        self._executor.shutdown()


# Keeps what is logged, as it can be sent, until it is handed to the run's process.
_logged: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()


def _begin(job: Job | None, with_models: bool) -> None:
    """Make a process ready, which ends with the run's, and load what it works with."""
    global _job  # noqa: PLW0603 - what a process of a pool works with
    collect_seldom()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run's process
    threading.Thread(
        target=_end_with, args=(multiprocessing.parent_process(),), daemon=True
    ).start()
    redaction.install()
    logging.getLogger().addHandler(logging.handlers.QueueHandler(_logged))
    for name in ("sam2_core", "tasks"):
        logging.getLogger(name).setLevel(logging.INFO)
    # What fails here fails again, and is told, in a step.
    _job = job
    if job and with_models:
        warm_in_background(job)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _do(
    step: Callable[..., Any], values: Sequence[Any]
) -> tuple[Any, list[Exception], list[logging.LogRecord]]:
    """Do a step; return its result, or its error with the causes, and what was logged."""
    result, errors = None, list[Exception]()
    try:
        result = step(_job, *values)
    except Exception as error:  # noqa: BLE001 - raised where the step was asked for
        errors = carried(error)
    return result, errors, [_logged.get() for _ in range(_logged.qsize())]


def carried(error: Exception) -> list[Exception]:
    """Return an error and its causes as they can be sent; what cannot is told in words."""
    chain: list[Exception] = []
    for cause in causes(error):
        try:
            chain.append(pickle.loads(pickle.dumps(cause)))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - libraries' errors want whatever they want
            kind = MachineError if is_machine_error(cause) else AutolabelError
            chain.append(kind(error_text(cause)))
            chain[-1].__notes__ = [*getattr(cause, "__notes__", ())]
    return chain


Step = Callable[[Job, Sequence[ChunkState]], list[ChunkState]]


def labeled_beside(
    processes: DeviceProcesses, job: Job, states: Sequence[ChunkState], step: Step
) -> list[ChunkState]:
    """Detect and segment a block's chunks in a process beside this one.

    Its seconds are divided by the number of processes.
    """
    context = job.context
    try:
        if job.params.boxes:  # they need no device, and a file of them is opened once
            states = [detect_chunk(job, state) for state in states]
        context.check()
        made = processes.run(step, states)
    except DeviceMemoryError as error:
        raise DeviceMemoryError(
            f"{error}; fewer processes need less: {DEVICE_PROCESSES.name}, {processes.count} now"
        ) from error
    except (ProcessDiedError, DeviceLostError) as error:
        error.add_note(SEGMENT)
        if isinstance(error, DeviceLostError):
            context.lose(error)
        raise
    labeled = []
    for before, after in zip(states, made, strict=True):
        spent = {
            stage: seconds if stage in before.seconds else seconds / processes.count
            for stage, seconds in after.seconds.items()
        }
        if not before.record:
            for stage in (SEGMENT,) if job.params.boxes else (DETECT, SEGMENT):
                context.progress.advance(stage, len(after.chunk.frames))
            context.progress.finish_chunk(spent, after.record.instances if after.record else 0)
        labeled.append(replace(after, seconds=spent))
    return labeled
