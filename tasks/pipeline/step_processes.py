"""Steps in processes of their own: a GPU is faster than the one thread at a time that Python runs.

Beside a GPU and enough cores, chunks are detected and segmented by several processes that share the
device, and labels are loaded by one more. The run's own process only joins steps and waits. What
goes between them is small: chunks with their boxes and counts, never pixels or masks.

A process that dies, or to which its device is lost, costs its chunks a second try in a new one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sam2_core.backends.onnxruntime_backend import is_out_of_memory
from sam2_core.cores import usable_cores
from sam2_core.machine_errors import causes
from sam2_core.number_variables import DEVICE_PROCESSES
from sam2_core.types import DeviceLostError, DeviceMemoryError
from tasks.observe.progress import Progress
from tasks.pipeline.step_interpreters import MEMORY_EACH, cores_each, is_begun
from tasks.pipeline.step_pipe import ProcessDiedError, StepProcess, Told

if TYPE_CHECKING:
    from tasks.pipeline.chunk import Job
    from tasks.store.artifacts import Chunk

# With four, 16 cores keep an H200 busy, whatever the backend (BENCHMARKS.md).
MOST, CORES_EACH = 4, 4
# More than are between two steps at any time.
REMEMBERED_CHUNKS = 256

log = logging.getLogger(__name__)


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


def _chunk(given: Sequence[Any]) -> Chunk | None:
    """Return the chunk that a step is about, where it is about one."""
    return getattr(given[0], "chunk", None) if given else None


def _subject(given: Sequence[Any]) -> str:
    """Say whose step it is, where it is a chunk's."""
    chunk = _chunk(given)
    if chunk is None:
        return ""
    first, last = chunk.frames[0], chunk.frames[-1]
    place = "/".join(filter(None, (first.sequence_id, first.camera)))
    return f"{place}, frames {first.index} to {last.index}: "


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
        self._lock = threading.Lock()
        # Whoever has it may start a process beside the others, or end all but one of them.
        self._turn = threading.RLock()
        self._processes: list[StepProcess] = []
        self._had: dict[str, StepProcess] = {}  # which of them did a chunk's last step
        self._only_one = False  # the device had too little memory for several
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

        If that process dies of it, or loses its device, another one is started for this step alone;
        one such step is done at a time. Where the device has too little memory for several
        processes, one stays, which then does these steps, too.

        Args:
            step: a function of a module; it gets the job first, where there is one.
            given: what else it gets.
            progress: hears what the step tells.

        Raises:
            ProcessDiedError: the second process died, too.
            DeviceLostError: the device is lost to new processes as well.
            Exception: whatever the step raises.

        """
        told = Told(progress or Progress())
        try:
            return self._shared(step, given, told)
        except (ProcessDiedError, DeviceLostError) as error:
            if self.lost:
                raise
            log.warning("%s%s: once more, in another process", _subject(given), error)
        with self._turn:
            told.again()
            try:
                return self._alone(step, given, told)
            except DeviceLostError as error:
                self.lost = error
                raise

    def _shared(self, step: Callable[..., Any], given: Sequence[Any], told: Told) -> Any:
        """Do a step in one of the processes; that another one needs memory is not its fault."""
        while not self.lost:
            process, only = self._chosen(step.__name__, given)
            try:
                return process.run(step, given, told)
            except (ProcessDiedError, DeviceLostError):
                self._end([process])
                if not process.dismissed:
                    raise
            except Exception as error:
                if only or not _lacks_memory(error):
                    raise
                self._leave_one()
            told.again()
        raise self.lost

    def _chosen(self, name: str, given: Sequence[Any]) -> tuple[StepProcess, bool]:
        """Return a process, and whether it has had the device for itself all the time.

        A chunk stays where its frames are, unless another process is less busy by more than that.
        """
        chunk = _chunk(given)
        with self._lock:
            self._start()
            process = min(self._processes, key=lambda one: one.busy(name))
            before = self._had.pop(chunk.stem, None) if chunk else None
            if before in self._processes and before.busy(name)[0] <= process.busy(name)[0] + 1:
                process = before
            if chunk:
                self._had[chunk.stem] = process
            if len(self._had) > REMEMBERED_CHUNKS:
                del self._had[next(iter(self._had))]
            return process, self._only_one

    def _alone(self, step: Callable[..., Any], given: Sequence[Any], told: Told) -> Any:
        """Do a step where nothing else can be hurt by it, if there is memory for that."""
        if not self._only_one and not self.lost:
            process = StepProcess(self._job, self._cores)
            try:
                return process.run(step, given, told)
            except Exception as error:
                if not _lacks_memory(error):
                    raise
            finally:
                process.end()
            self._leave_one()
            told.again()
        return self._shared(step, given, told)

    def _leave_one(self) -> None:
        with self._turn:  # whoever comes second waits until there is memory
            with self._lock:
                self.count, self._only_one = 1, True
                others = self._processes[1:]
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
