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
import importlib
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from dataclasses import replace
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

from sam2_core import redaction
from sam2_core.backend_choice import TESTED_VARIABLE, tested_backends
from sam2_core.machine import DEVICE_PROCESSES, share_of, usable_cores
from sam2_core.machine_errors import causes, is_machine_error
from sam2_core.types import AutolabelError, DeviceLostError, DeviceMemoryError, MachineError
from tasks.dataset.database import ensure_database
from tasks.errors import error_text
from tasks.observe.progress import DETECT, SEGMENT
from tasks.pipeline.chunk import ChunkState, detect_chunk
from tasks.pipeline.run_context import Job
from tasks.processes import collect_seldom

# With four, 16 cores keep an H200 busy, whatever the backend (BENCHMARKS.md).
MOST, CORES_EACH, MEMORY_EACH = 4, 4, 8 << 30

_SPAWN = multiprocessing.get_context("spawn")
_environment = threading.Lock()  # held while processes inherit what is set for them
Result = TypeVar("Result")
_job: Job | None = None  # of this process, where it belongs to a pool
log = logging.getLogger(__name__)


class ProcessDiedError(MachineError):
    """A process that did a step has ended, and nobody knows why."""


class ProcessKilledError(ProcessDiedError):
    """It was killed, as the system does where its memory runs out: no step's fault."""


@contextlib.contextmanager
def ready(job: Job) -> Iterator[None]:
    """Load, while other things start, what a run on a GPU needs; end it with the block.

    That is processes beside this one where the machine has the cores and the device the memory for
    them, else models in this process. Blocks may be nested; the outermost one counts.

    Beside a GPU, labels are loaded by processes of their own, which leave Python's lock to whoever
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
        context.processes.start()
    else:
        warm_in_background(job)
    if count or (backend != "onnxruntime-cpu" and DEVICE_PROCESSES.read() is None):
        context.loader = DeviceProcesses(max(count // 2, 1), job, with_models=False)
        if job.params.dataset_name:
            threading.Thread(target=_warm_loader, args=(context.loader,), daemon=True).start()
    try:
        yield
    finally:
        for processes in filter(None, (context.processes, context.loader)):
            processes.end()
        context.processes = context.loader = None


def _warm_loader(loader: DeviceProcesses) -> None:
    """Let processes import FiftyOne, which takes seconds; it wants to know its database first."""
    try:
        ensure_database()
        loader.start()
    except Exception as error:  # noqa: BLE001 - reported where labels are loaded
        log.debug("the loader is not warm: %s", error)


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
    from sam2_core.backend_choice import device_memory_bytes

    count = min(MOST, usable_cores() // CORES_EACH, device_memory_bytes() // MEMORY_EACH)
    return count if count > 1 else 0


class DeviceProcesses:
    """A pool of processes with models of their own.

    Args:
        count: how many.
        job: what their steps get first, with a context of their process.
        with_models: whether they load its models; else FiftyOne.

    Attributes:
        lost: why the device is lost to new processes, too; None while it works.

    """

    def __init__(self, count: int, job: Job | None, *, with_models: bool = True) -> None:
        self.count, self._begun_with = count, (job, with_models)
        self._lock, self._alone = threading.Lock(), threading.Lock()
        self._pool: _Pool | None = None
        self.lost: DeviceLostError | None = None

    def start(self) -> _Pool:
        """Start them where they do not run, so that they are ready when there is work."""
        with self._lock:
            if self._pool is None:
                self._pool = _Pool(self.count, self._begun_with)
            return self._pool

    def run(self, step: Callable[..., Result], *values: Any) -> Result:
        """Have a process do a step, once more if its process dies or loses the device.

        Where the device has too little memory for several processes, one goes on.

        Args:
            step: a function of a module; it gets the job first.
            values: what else it gets.

        Raises:
            ProcessDiedError: the second process died, too.
            DeviceLostError: the device is lost to new processes as well.
            Exception: whatever the step raises.

        """
        while not self.lost:
            pool = self.start()
            try:
                return pool.run(step, values)
            except CancelledError:
                continue  # of a pool that another step has had ended
            except (ProcessDiedError, DeviceLostError) as error:
                self._end(pool)
                log.warning("%s%s: once more, in another process", _subject(values), error)
                return self._once_more(step, values)
            except Exception as error:
                if pool.count == 1 or not _lacks_memory(error):
                    raise
                self._leave_one(pool)
        raise self.lost

    def _once_more(self, step: Callable[..., Result], values: Sequence[Any]) -> Result:
        """Do a step where nothing else can be hurt by it."""
        with self._alone:
            pool = _Pool(1, self._begun_with)
            try:
                return pool.run(step, values)
            except DeviceLostError as error:
                self.lost = error
                raise
            except Exception as error:
                if not _lacks_memory(error):
                    raise
            finally:
                pool.end()
        self._leave_one(self.start())  # it had no memory beside the others
        return self.run(step, *values)

    def _leave_one(self, pool: _Pool) -> None:
        if pool.count > 1:
            self.count = 1
            log.warning("the device has too little memory for several processes: one goes on")
            self._end(pool, wait=True)

    def _end(self, pool: _Pool, *, wait: bool = False) -> None:
        """Let a pool do no more; with `wait`, what it does now is done when this returns."""
        with self._lock:  # the next pool has the device when this one has left it
            if self._pool is pool:
                self._pool = None
            pool.end(wait=wait)

    def end(self) -> None:
        """End all of them, whatever they do."""
        if self._pool is not None:
            self._end(self._pool)


class _Pool:
    """Processes that are started, and ended, together."""

    def __init__(self, count: int, begun_with: tuple[Job | None, bool]) -> None:
        self.count = count
        self._executor = ProcessPoolExecutor(count, _SPAWN, _begin, begun_with)
        share = share_of(max(usable_cores() // count, 1))
        with _environment, _set(share | {TESTED_VARIABLE: ",".join(tested_backends())}):
            before = set(multiprocessing.active_children())
            for _ in range(count):  # each starts one
                self._executor.submit(bool)
            self._processes: list[BaseProcess] = [
                one for one in multiprocessing.active_children() if one not in before
            ]

    def run(self, step: Callable[..., Result], values: Sequence[Any]) -> Result:
        try:
            result, errors, logged = self._executor.submit(_do, step, values).result()
        except BrokenProcessPool as error:
            raise self._died(error) from None
        except RuntimeError as error:
            raise CancelledError from error  # it was ended meanwhile
        for name, level, text in logged:  # here, where it is known which run's it is
            logging.getLogger(name).log(level, "%s", text)
        for one, cause in pairwise(errors):
            one.__cause__ = cause
        if errors:
            raise errors[0]
        return cast("Result", result)

    def _died(self, error: Exception) -> ProcessDiedError:
        self._executor.shutdown()  # it joins them: two threads that join one may miss its exit code
        codes = {one.exitcode for one in self._processes} - {None, 0, -signal.SIGTERM}
        if -signal.SIGKILL in codes:
            how = "was killed (signal 9), as the system does where its memory runs out"
            return ProcessKilledError(f"a process that worked on this {how}")
        how = f"ended with exit code {codes.pop()}" if codes else f"was ended: {error}"
        return ProcessDiedError(f"a process that worked on this {how}")

    def end(self, *, wait: bool = False) -> None:
        if not wait:
            for one in self._processes:
                one.kill()
        self._executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment while processes start, which inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Logged(logging.Handler):
    """Keeps what is logged until it is handed to the run's process."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, without its traceback."""
        self.lines.append((record.name, record.levelno, record.getMessage()))


_logged = _Logged()


def _begin(job: Job | None, with_models: bool) -> None:
    """Make a process ready, which ends with the run's, and load what it works with."""
    global _job  # noqa: PLW0603 - what a process of a pool works with
    collect_seldom()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run's process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    redaction.install()
    logging.getLogger().addHandler(_logged)
    for name in ("sam2_core", "tasks"):
        logging.getLogger(name).setLevel(logging.INFO)
    # What fails here fails again, and is told, in a step.
    _job = job
    if job and with_models:
        warm_in_background(job)
    elif not with_models:
        with contextlib.suppress(Exception):  # its database first
            ensure_database()
            importlib.import_module("tasks.load.into_fiftyone")
            importlib.import_module("fiftyone")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(
    step: Callable[..., Any], values: Sequence[Any]
) -> tuple[Any, list[BaseException], list[tuple[str, int, str]]]:
    """Do a step; return its result, or its error with the causes, and what was logged."""
    result, errors = None, list[BaseException]()
    try:
        result = step(_job, *values)
    except BaseException as error:  # noqa: BLE001 - raised where the step was asked for
        errors = carried(error)
    lines, _logged.lines = _logged.lines, []
    return result, errors, lines


def carried(error: BaseException) -> list[BaseException]:
    """Return an error and its causes as they can be sent; what cannot is told in words."""
    chain: list[BaseException] = []
    for one in causes(error):
        try:
            if not isinstance(one, Exception):  # such as SystemExit: it ends no run
                raise TypeError(type(one))
            chain.append(pickle.loads(pickle.dumps(one)))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - libraries' errors want whatever they want
            kind = MachineError if is_machine_error(one) else AutolabelError
            chain.append(kind(error_text(one)))
            for note in getattr(one, "__notes__", ()):
                chain[-1].add_note(note)
    return chain


def _subject(values: Sequence[Any]) -> str:
    """Say which frames a step is about, where it is about chunks."""
    states = values[0] if values and isinstance(values[0], (list, tuple)) else values
    chunks = [one.chunk for one in states if hasattr(one, "chunk")]
    if not chunks:
        return ""
    first, last = chunks[0].frames[0], chunks[-1].frames[-1]
    place = "/".join(filter(None, (first.sequence_id, first.camera)))
    return f"{place}, frames {first.index} to {last.index}: "


def _lacks_memory(error: Exception) -> bool:
    from sam2_core.backends.onnxruntime_backend import is_out_of_memory

    return any(
        isinstance(one, DeviceMemoryError) or (isinstance(one, Exception) and is_out_of_memory(one))
        for one in causes(error)
    )


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
            states = [detect_chunk(job, one) for one in states]
        context.check()
        made = processes.run(step, states)
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
