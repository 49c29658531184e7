"""Workers of this machine: a plain `prefect worker start` for each GPU, bound to it.

A thread looks after each: it tests the machine and the device, starts the worker, and ends it where
a flow run notes that the machine has failed. What a plain worker does not do is stop politely: told
to end it kills its flow run within seconds, and the shard lies there until somebody misses it. Here
flow runs get SIGTERM first: they finish the chunk at hand and give their shard back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from flows.machine import self_test
from flows.machine.gpus import gpu_ids
from flows.machine.notes import NOTHING, SICK_VARIABLE, Note, Workers, noted_sick
from flows.machine.self_test import Verdict
from sam2_core.backend_choice import TESTED_VARIABLE
from sam2_core.machine import METRICS_PORT, share_of, usable_cores
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.processes import handling
from tasks.store.private_files import OwnFolder

if TYPE_CHECKING:
    import psutil

POLL_S, STOP_S = 0.5, 20.0
LONGEST_PAUSE_S = HEALTHY_S = 60.0
# A storage that is down for everybody would stop this worker for good, and another one may be well.
STORAGE_AWAITED_S = 600.0
OFFERS, AND = "~", "+"  # between a worker's name and what it offers, and between its offers
# Of the workers and their flow runs; what the user has set stays.
SETTINGS = {
    "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    # None but what is due: a worker that is stopping must not get its own shard back.
    "PREFECT_WORKER_PREFETCH_SECONDS": "0",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "sam2_core,tasks,flows",
}
ON_GPU = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts; CUDA's own begins with the fastest
    # A device that waits for a question costs more than it.
    "PREFECT_WORKER_QUERY_SECONDS": os.environ.get("PREFECT_WORKER_QUERY_SECONDS", "1"),
}
Found = TypeVar("Found")

log = logging.getLogger(__name__)


@dataclass
class Place:
    """A place for one worker.

    Attributes:
        name: of the worker; Prefect shows it with what the worker offers.
        environment: added to this process's.
        tested: whether it has a device, which is tested before it starts.
        note: what its flow runs have noted of this machine, until a test has passed.
        noted_at_s: when.
        registered: name that Prefect knows it by, "" before it was started.

    """

    name: str
    environment: dict[str, str]
    tested: bool = False
    note: Note = NOTHING
    noted_at_s: float = 0.0
    registered: str = ""
    scratch: OwnFolder = field(default_factory=lambda: OwnFolder("autolabel-worker-"))


def metrics_ports(first: int | None, workers: int) -> list[str]:
    """Return a port for metrics for each worker; none where there is no first one.

    Raises:
        AutolabelError: there are not enough ports.

    """
    first = first or METRICS_PORT.read()
    if first and first + workers - 1 > METRICS_PORT.most:
        raise AutolabelError(
            f"metrics of {workers} workers need as many ports from {first} on, and "
            f"{METRICS_PORT.most} is the last one: begin with a lower one"
        )
    return [str(first + number) for number in range(workers)] if first else []


def places(pool: str, gpus: list[str], count: int | None, first_port: int | None) -> list[Place]:
    """Return a place for each GPU, or `count` that share them in turn; without GPUs on the CPU."""
    number = count or len(gpus) or 1
    ports = metrics_ports(first_port, number)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    common = {"PATH": path} | {key: SETTINGS[key] for key in SETTINGS.keys() - os.environ.keys()}
    found = []
    for index in range(number):
        gpu = gpus[index % len(gpus)] if gpus else ""
        own = common | share_of(max(usable_cores() // number, 1))
        own |= ON_GPU | {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
        own |= {METRICS_PORT.name: ports[index]} if ports else {}
        name = f"{socket.gethostname()}-{pool}-{f'gpu{gpu}' if gpu else 'cpu'}-{index}"
        found.append(Place(name, own, tested=bool(gpu)))
    return found


class Keeper:
    """Runs the workers of one command until SIGTERM or Ctrl-C.

    Args:
        pool: work pool.
        count: how many workers; one for each GPU, else one, when None.
        metrics_port: Prometheus port of the first worker's flow runs, the next has the next; what
            `AUTOLABEL_METRICS_PORT` says when None.
        grace_s: the longest to wait for flow runs to give their shards back.
        bound: to a GPU each; not for a pool whose runs use none, which must go on beside a GPU
            that is sick. Where a driver lists no GPU there is no worker, and the driver is asked
            again: on the processor one would make other labels.

    """

    def __init__(
        self, pool: str, count: int | None, metrics_port: int | None, grace_s: float, *, bound: bool
    ) -> None:
        metrics_ports(metrics_port, count or 1)  # a wrong one is told at once
        self._pool, self._count, self._port, self._grace_s = pool, count, metrics_port, grace_s
        self._bound, self._stop = bound, threading.Event()
        self._told, self._places = Workers(pool), list[Place]()
        self._threads = list[threading.Thread]()

    def run(self) -> list[str]:
        """Run the workers, restarting those that end; returns the names that Prefect knows."""
        with handling(lambda *_: self._stop.set(), signal.SIGTERM, signal.SIGINT):
            self._in_a_thread(self._begin)
            self._stop.wait()
            deadline = time.monotonic() + self._grace_s + 2 * STOP_S
            for thread in self._threads:  # one that the driver holds is left to it
                thread.join(max(0.0, deadline - time.monotonic()))
        self._told.forget()
        for place in self._places:
            place.scratch.remove()
        return [place.registered for place in self._places if place.registered]

    def _in_a_thread(self, work: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _begin(self) -> None:
        """Find the GPUs, and start a thread for each worker."""
        waiting = f"{socket.gethostname()}-{self._pool}-gpu-0"
        gpus = self._until_well(waiting, lambda: gpu_ids() if self._bound else [])
        if gpus is None:
            return
        self._told.clear()
        self._places = places(self._pool, gpus, self._count, self._port)
        log.warning("workers: %s", ", ".join(place.name for place in self._places))
        for place in self._places:
            self._told.tell(place.name, "")
            self._in_a_thread(partial(self._keep, place))

    def _until_well(self, name: str, test: Callable[[], Found]) -> Found | None:
        """Repeat a test with growing pauses until it passes; None where all is to end."""
        pause_s = 1.0
        while not self._stop.is_set():
            try:
                found = test()
            except (AutolabelError, OSError) as error:
                self._told.tell(name, str(error))
                log.error("%s takes no work: %s", name, error)
            else:
                if self._told.tell(name, ""):
                    log.warning("%s is well again and takes work", name)
                return found
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._stop.wait(pause_s)
        return None

    def _keep(self, place: Place) -> None:
        pause_s = 1.0
        while (offers := self._until_well(place.name, lambda: self._offers(place))) is not None:
            began = time.monotonic()
            with contextlib.suppress(OSError):  # no memory, no file handles: again, later
                self._work(place, offers)
            healthy = time.monotonic() - began > HEALTHY_S
            pause_s = 1.0 if healthy else min(pause_s * 2, LONGEST_PAUSE_S)
            self._stop.wait(pause_s)

    def _offers(self, place: Place) -> tuple[str, ...]:
        """Test a place in a process of its own; returns the backends that it offers."""
        if not place.tested and not place.note.why:
            return ("onnxruntime-cpu",)
        if time.monotonic() - place.noted_at_s > STORAGE_AWAITED_S:
            place.note = Note(place.note.why)
        own = place.environment | {"TMPDIR": str(place.scratch.path)}
        if not place.tested:  # its device is none of its business
            own["CUDA_VISIBLE_DEVICES"] = ""
        printed = self._told.sick_file(place.name).with_suffix(".test")
        with printed.open("w") as output:
            test = subprocess.Popen(
                self_test.command(place.note), env=os.environ | own, stdout=output,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + self_test.LIMIT_S
        while test.poll() is None:  # no other is started beside one that cannot be killed
            if self._stop.wait(0.1) or time.monotonic() > deadline:
                test.kill()
                self._told.tell(place.name, "its self-test hangs in the driver or a file system")
            if self._stop.is_set():
                break
        verdict = Verdict.parse(printed.read_text(), test.returncode or 0)
        if verdict.problem:
            raise AutolabelError(verdict.problem)
        return verdict.offers

    def _work(self, place: Place, offers: tuple[str, ...]) -> None:
        """Run a worker until it ends, all is to end, or a flow run notes that the machine fails."""
        sick = self._told.sick_file(place.name)
        sick.unlink(missing_ok=True)
        place.note, place.registered = NOTHING, f"{place.name}{OFFERS}{AND.join(offers)}"
        own = {"TMPDIR": str(place.scratch.path), SICK_VARIABLE: str(sick)}
        if place.tested:
            own[TESTED_VARIABLE] = ",".join(offers)
        command = [
            # Ends with this process, even with one that was killed: it would take shards beside
            # those of the next one, and nobody would know of it.
            sys.executable, "-m", "flows.machine.launched", "0", str(os.getpid()),
            sys.executable, "-m", "prefect", "worker", "start", "--pool", self._pool,
            "--name", place.registered, "--type", "process", "--limit", "1",
            "--no-create-pool-if-not-found",
        ]  # fmt: skip
        # A session of its own: Ctrl-C is for us, who tell the flow run first.
        worker = subprocess.Popen(
            command, env=os.environ | place.environment | own, stdin=subprocess.DEVNULL,
            start_new_session=True, pass_fds=(place.scratch.lock.fileno(),),
        )  # fmt: skip
        while worker.poll() is None and not sick.exists() and not self._stop.wait(POLL_S):
            pass
        place.note, place.noted_at_s = noted_sick(str(sick)), time.monotonic()
        if place.note.why:
            log.error(
                "%s takes no more until this machine is tested: %s", place.name, place.note.why
            )
        stopped = self._stop.is_set()
        patience_s = self._grace_s if stopped else STOP_S if place.note.why else 0.0
        _end_flow_runs(worker.pid, patience_s, ask=stopped)
        processes.end(worker, STOP_S)


def _end_flow_runs(session: int, patience_s: float, *, ask: bool) -> None:
    """Wait for a worker's flow runs, which give their shards back; kill those that do not end.

    Args:
        session: of the worker and its flow runs, also when it has died under them.
        patience_s: the longest to wait.
        ask: whether they are asked to, once each; what notes that the machine fails needs not be.

    """
    asked: set[int] = set()
    deadline = time.monotonic() + patience_s
    while runs := _flow_runs(session):
        for run in runs:
            with contextlib.suppress(ProcessLookupError):
                if time.monotonic() > deadline:
                    os.kill(run.pid, signal.SIGKILL)
                elif ask and run.pid not in asked:
                    asked.add(run.pid)
                    os.kill(run.pid, signal.SIGTERM)
        if time.monotonic() > deadline + STOP_S:
            log.error("a flow run cannot be killed: the driver or a file system holds it")
            return
        time.sleep(0.1)


def _flow_runs(session: int) -> list[psutil.Process]:
    import psutil

    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(one.pid) == session and "prefect.engine" in one.cmdline():
                found.append(one)
    return found
