"""One worker of this machine: Prefect's process worker for one flow run at a time, and one GPU.

A supervisor keeps it running. It tests the machine and its device before it takes work, and ends
where they fail, or where a flow run tells that the machine has failed: the supervisor starts it
again, later and later. What `prefect worker start` does not do is stop politely: told to end it
kills its flow run within seconds, and the shard lies there until somebody misses it. Here flow runs
get SIGTERM first: they finish the chunk at hand and give their shard back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from flows.machine import self_test
from flows.machine.programs import CPU_POOL, GRACE_S, TAKES_NO_WORK, TIED, gpu_ids
from flows.server.api import use_api
from sam2_core.devices import TESTED_VARIABLE
from sam2_core.machine import METRICS_PORT, share_of, usable_cores
from sam2_core.types import AutolabelError
from tasks.errors import error_text
from tasks.processes import WORKER_VARIABLE, collect_seldom, python
from tasks.store.private_files import OwnFolder

if TYPE_CHECKING:
    from prefect.workers.process import ProcessWorker

POLL_S, STOP_S = 0.5, 20.0
# Of the worker and its flow runs; what the user has set stays.
SETTINGS = {
    "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
    "PREFECT_WORKER_QUERY_SECONDS": "1",  # a GPU that waits for a question costs more than it
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

    """

    pool: str
    number: int
    count: int

    @property
    def name(self) -> str:
        """As Prefect shows it."""
        return f"{socket.gethostname()}-{self.pool}-{self.number}"

    def bind(self) -> str:
        """Give this process its share of the machine; returns its GPU, "" for the processor.

        Raises:
            AutolabelError: an NVIDIA driver is here, and which GPUs may be used is not known; or
                there is no such port for metrics.

        """
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        os.environ |= {"PATH": path} | share_of(max(usable_cores() // self.count, 1))
        if first := METRICS_PORT.read(os.environ):
            os.environ[METRICS_PORT.name] = str(first + self.number)
            METRICS_PORT.read(os.environ)  # the last port may be below it
        gpus = [] if self.pool == CPU_POOL else gpu_ids()
        if not gpus:
            return ""
        gpu = gpus[self.number % len(gpus)]
        # As nvidia-smi counts; CUDA's own order begins with the fastest.
        os.environ |= {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return gpu


def work(worker: Worker, until_idle_s: float | None = None) -> None:
    """Work until SIGTERM or Ctrl-C, until idle, or until the machine or Prefect's worker fails.

    Where it takes no work, it says why and exits; its supervisor starts it again.

    Args:
        worker: which.
        until_idle_s: end it after so long without a flow run; never when None.

    """
    collect_seldom()
    scratch = OwnFolder("autolabel-worker-")
    os.environ |= {"TMPDIR": str(scratch.path), WORKER_VARIABLE: str(os.getpid())}
    try:
        offers = _offers(worker.bind())
        os.environ |= SETTINGS | os.environ
        with joined(worker, offers) as plain:
            (scratch.path / "joined").touch()  # what Kubernetes asks for
            print(f"{worker.name} takes work", file=sys.stderr)  # noqa: T201
            asyncio.run(_run(plain, until_idle_s))
    except Exception as error:  # noqa: BLE001 - whatever it is, `status` has to tell
        why = " ".join(error_text(error).split())
        sys.exit(f"{worker.name}{TAKES_NO_WORK}{why}")
    finally:
        scratch.remove()


def _offers(gpu: str) -> tuple[str, ...]:
    """Test this machine; returns the backends that can label, best first.

    Raises:
        AutolabelError: it fails.

    """
    if not gpu:
        self_test.check_host()
        return ("onnxruntime-cpu",)
    try:  # it waits for one that it has killed: no other is started beside one that cannot be
        test = subprocess.run(
            [*TIED, *python("flows.machine.self_test")], text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=self_test.LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise AutolabelError("its self-test hangs in the driver or a file system") from None
    lines = test.stdout.strip().splitlines()
    if test.returncode:
        raise AutolabelError(
            lines[-1]
            if lines
            else f"its self-test ended with exit code {test.returncode} and said nothing"
        )
    offers = tuple(lines[-1].split("+"))
    os.environ[TESTED_VARIABLE] = ",".join(offers)  # its flow runs need not test it again
    return offers


@contextlib.contextmanager
def joined(worker: Worker, offers: Sequence[str]) -> Iterator[ProcessWorker]:
    """Join the worker's pool, look for lost runs in the block, and sign off at its end.

    Args:
        worker: which.
        offers: backends that it can label with, best first.

    """
    use_api()
    from prefect.workers.process import ProcessWorker

    from flows.server.client import connected, server_time
    from flows.server.fleet import join, sign_off
    from flows.server.lost_runs import looking_after

    join(worker.pool, worker.name, offers)
    with connected() as client:
        # It asks for what is due by its own clock.
        behind_s = (server_time(client) - datetime.now(UTC)).total_seconds()
    try:
        with looking_after():
            yield ProcessWorker(
                worker.pool, name=worker.name, limit=1, create_pool_if_not_found=False,
                prefetch_seconds=behind_s if behind_s > 1 else None,
            )  # fmt: skip
    finally:
        sign_off(worker.pool, worker.name)


async def _run(plain: ProcessWorker, until_idle_s: float | None) -> None:
    """Run Prefect's worker, and end its flow runs before it.

    Raises:
        AutolabelError: the machine failed under a flow run's hands, or the worker ended by itself.

    """
    stop, failed = asyncio.Event(), asyncio.Event()
    heard = {signal.SIGTERM: stop, signal.SIGINT: stop, self_test.FAILED: failed}
    for number, event in heard.items():
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    working, busy_s = asyncio.create_task(plain.start(printer=lambda _: None)), time.monotonic()
    while not (working.done() or stop.is_set() or failed.is_set()):
        await asyncio.sleep(POLL_S)
        if until_idle_s is not None:
            if psutil.Process().children():  # flow runs: it starts nothing else
                busy_s = time.monotonic()
            elif time.monotonic() - busy_s > until_idle_s:
                stop.set()
    stopped = stop.is_set()
    await _end_flow_runs(GRACE_S if stopped else STOP_S, ask=not failed.is_set())
    working.cancel()
    ended = await asyncio.gather(working, return_exceptions=True)
    if not stopped:
        why = "".join(error_text(error) for error in ended if error)
        raise AutolabelError(
            "this machine failed under its flow run, whose state says why"
            if failed.is_set()
            else f"Prefect's worker ended: {why}"
        )


async def _end_flow_runs(patience_s: float, *, ask: bool) -> None:
    """Wait for this worker's flow runs, which give their shards back; kill those that do not end.

    Args:
        patience_s: the longest to wait.
        ask: whether they are asked to, once each; what has found that the machine fails ends.

    """
    asked: set[int] = set()
    deadline = time.monotonic() + patience_s
    # One that cannot be killed is held by the driver or a file system.
    while (runs := psutil.Process().children()) and time.monotonic() < deadline + STOP_S:
        for run in runs:
            with contextlib.suppress(ProcessLookupError):
                if time.monotonic() > deadline:
                    os.kill(run.pid, signal.SIGKILL)
                elif ask and run.pid not in asked:
                    asked.add(run.pid)
                    os.kill(run.pid, signal.SIGTERM)
        await asyncio.sleep(0.1)
