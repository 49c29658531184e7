"""One worker of this machine: a plain `prefect worker`, in a process of its own, bound to its GPU.

A supervisor keeps it running. It tests the machine and its device before it takes work, and ends
where they fail, or where a flow run notes that the machine has failed: the supervisor starts it
again, later and later. What a plain worker does not do is stop politely: told to end it kills its
flow run within seconds, and the shard lies there until somebody misses it. Here flow runs get
SIGTERM first: they finish the chunk at hand and give their shard back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.machine import self_test
from flows.machine.programs import CPU_POOL, gpu_ids, python
from flows.machine.self_test import NOTE_VARIABLE, noted_sick, notes_folder
from sam2_core.backend_choice import TESTED_VARIABLE
from sam2_core.cache import write_whole
from sam2_core.machine import METRICS_PORT, share_of, usable_cores
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.errors import error_text
from tasks.processes import handling
from tasks.store.private_files import OwnFolder

if TYPE_CHECKING:
    import psutil

POLL_S, STOP_S = 0.5, 20.0
# Of the worker and its flow runs; what the user has set stays.
SETTINGS = {
    "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    # None but what is due: a worker that is stopping must not get its own shard back.
    "PREFECT_WORKER_PREFETCH_SECONDS": "0",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "sam2_core,tasks,flows",
}


@dataclass(frozen=True)
class Worker:
    """One of this machine's workers of a pool.

    Attributes:
        pool: work pool.
        number: which it is, from 0.
        count: how many there are; they share the GPUs in turn, and the cores.
        metrics_port: of worker 0; none when None.

    """

    pool: str
    number: int
    count: int
    metrics_port: int | None

    @property
    def name(self) -> str:
        """As Prefect shows it."""
        return f"{socket.gethostname()}-{self.pool}-{self.number}"

    def bind(self) -> str:
        """Give this process its share of the machine; returns its GPU, "" for the processor.

        Raises:
            UnlistedError: an NVIDIA driver is here, and which GPUs may be used is not known.

        """
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        os.environ |= {"PATH": path} | share_of(max(usable_cores() // self.count, 1))
        if self.metrics_port:
            os.environ[METRICS_PORT.name] = str(self.metrics_port + self.number)
        gpus = [] if self.pool == CPU_POOL else gpu_ids()
        if not gpus:
            return ""
        gpu = gpus[self.number % len(gpus)]
        # As nvidia-smi counts; CUDA's own order begins with the fastest.
        os.environ |= {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        # A device that waits for a question costs more than it.
        os.environ.setdefault("PREFECT_WORKER_QUERY_SECONDS", "1")
        return gpu


def work(
    worker: Worker,
    grace_s: float,
    until_idle_s: float | None = None,
    is_known: Callable[[], bool] = lambda: True,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C, until it ends or is idle, or until its machine fails.

    Where it takes no work, it notes why and exits; its supervisor starts it again.

    Args:
        worker: which.
        grace_s: the longest to wait for its flow run to give its shard back.
        until_idle_s: end it after so long without a flow run; never when None.
        is_known: whether Prefect has heard of it, from when on it can be idle.

    """
    note = notes_folder() / f"{worker.name}.{os.getppid()}"
    stop = threading.Event()
    try:
        with contextlib.ExitStack() as stack:
            scratch = OwnFolder("autolabel-worker-")
            stack.callback(scratch.remove)
            os.environ |= {"TMPDIR": str(scratch.path), NOTE_VARIABLE: str(note)}
            offers = _offers(worker.bind(), note)
            for variable, value in SETTINGS.items():
                os.environ.setdefault(variable, value)
            stop_signals = signal.SIGTERM, signal.SIGINT
            stack.enter_context(handling(lambda *_: stop.set(), *stop_signals))
            command = [
                # Ends with this process, even with one that was killed: it would take shards beside
                # those of the next one.
                *python("flows.machine.launched"), "0", str(os.getpid()),
                *python("flows.server.prefect_worker"), worker.pool, worker.name, *offers,
            ]  # fmt: skip
            idle = _Idle(until_idle_s, is_known) if until_idle_s is not None else None
            _work(command, note, stop, grace_s, idle)
    except Exception as error:  # noqa: BLE001 - whatever it is, `status` has to tell
        why = " ".join(error_text(error).split())
        write_whole(note, why)
        sys.exit(f"{worker.name} takes no work: {why}")


def _offers(gpu: str, note: Path) -> tuple[str, ...]:
    """Test this machine in a process of its own; returns the backends that can label, best first.

    Raises:
        AutolabelError: it fails.

    """
    if not gpu and not note.exists():
        return ("onnxruntime-cpu",)
    environment = os.environ if gpu else os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    tied = [*python("flows.machine.launched"), "0", str(os.getpid())]
    # Whoever leaves the block waits for it: no other is started beside one that cannot be killed.
    with subprocess.Popen(
        [*tied, *python("flows.machine.self_test")], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as test:  # fmt: skip
        try:
            printed, _ = test.communicate(timeout=self_test.LIMIT_S)
        except subprocess.TimeoutExpired:
            test.kill()
            raise AutolabelError("its self-test hangs in the driver or a file system") from None
    lines = printed.strip().splitlines()
    if test.returncode:
        died = f"its self-test ended with exit code {test.returncode} and said nothing"
        raise AutolabelError(lines[-1] if lines else died)
    offers = tuple(lines[-1].split("+"))
    if gpu:  # its flow runs need not test it again
        os.environ[TESTED_VARIABLE] = ",".join(offers)
    return offers


class _Idle:
    """Tells when a worker has had no flow run for so long, from when Prefect has heard of it."""

    def __init__(self, longest_s: float, is_known: Callable[[], bool]) -> None:
        self._longest_s, self._is_known = longest_s, is_known
        self._since: float | None = None

    def is_over(self, session: int) -> bool:
        if self._since is None and not self._is_known():
            return False
        if self._since is None or _flow_runs(session):
            self._since = time.monotonic()
        return time.monotonic() - self._since > self._longest_s


def _work(
    command: Sequence[str], note: Path, stop: threading.Event, grace_s: float, idle: _Idle | None
) -> None:
    # A session of its own: Ctrl-C is for us, who tell the flow run first.
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    # The note of an earlier start is there until the worker has joined its pool.
    said = before = noted_sick(note)
    while started.poll() is None and said in {"", before} and not stop.wait(POLL_S):
        before, said = said, noted_sick(note)
        if idle and idle.is_over(started.pid):
            stop.set()
    stopped, failed = stop.is_set(), noted_sick(note)
    _end_flow_runs(started.pid, grace_s if stopped else STOP_S if failed else 0.0, ask=stopped)
    processes.end(started, STOP_S)
    if not stopped:
        raise AutolabelError(failed or f"`prefect worker` ended with code {started.returncode}")


def _end_flow_runs(session: int, patience_s: float, *, ask: bool) -> None:
    """Wait for a worker's flow runs, which give their shards back; kill those that do not end.

    Args:
        session: of the worker and its flow runs, also when it has died under them.
        patience_s: the longest to wait.
        ask: whether they are asked to, once each; what notes that the machine fails needs not be.

    """
    asked: set[int] = set()
    deadline = time.monotonic() + patience_s
    # One that cannot be killed is held by the driver or a file system.
    while (runs := _flow_runs(session)) and time.monotonic() < deadline + STOP_S:
        for run in runs:
            with contextlib.suppress(ProcessLookupError):
                if time.monotonic() > deadline:
                    os.kill(run.pid, signal.SIGKILL)
                elif ask and run.pid not in asked:
                    asked.add(run.pid)
                    os.kill(run.pid, signal.SIGTERM)
        time.sleep(0.1)


def _flow_runs(session: int) -> list[psutil.Process]:
    import psutil

    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(one.pid) == session and "prefect.engine" in one.cmdline():
                found.append(one)
    return found
