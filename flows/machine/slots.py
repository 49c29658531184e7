"""Which workers a machine has: one for each GPU, with its environment and its port for metrics."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.machine.gpus import UnlistedError, UnnamedError, gpu_ids
from flows.machine.slot import Slot
from sam2_core.machine import METRICS_PORT, share_of, usable_cores
from sam2_core.types import AutolabelError


def slots(
    pool: str,
    count: int | None,
    metrics_port: int | None = None,
    *,
    bound: bool = True,
    known: Sequence[str] | None = None,
) -> list[Slot]:
    """One slot for each GPU, or `count` of them; without GPUs one that runs on the CPU.

    Args:
        pool: work pool.
        count: how many; more than GPUs share them in turn.
        metrics_port: Prometheus port of the first worker's flow runs, the next has the next; what
            `AUTOLABEL_METRICS_PORT` says when None.
        bound: to a GPU each, which is tested first; not for a pool whose runs use none, which
            must go on beside a GPU that is sick. Where a driver is that lists no GPU, one slot
            stands for all and takes no work: on the processor it would make other labels. Once the
            driver lists some, theirs take its place.
        known: the GPUs, where they are known; they are looked for when None.

    Raises:
        AutolabelError: there are not enough ports for metrics, or the variable names none.

    """
    gpus, first_port = list(known or ()), metrics_port or METRICS_PORT.read()
    try:
        gpus = gpus or (gpu_ids() if bound else [])
    except UnnamedError as error:
        unlisted = f"{error}. Once mended, stop the workers and start them again"
        return [Slot(_name(pool, "gpu", 0), pool, unlisted=unlisted)]
    except UnlistedError as error:

        def listed(found: Sequence[str]) -> list[Slot]:
            return slots(pool, count, metrics_port, known=found)

        return [Slot(_name(pool, "gpu", 0), pool, unlisted=str(error), listed=listed)]
    number = count or len(gpus) or 1
    ports = _metrics_ports(first_port, number)
    found = []
    for index in range(number):
        environment, where = _environment(), "cpu"
        if gpus:
            where = f"gpu{gpus[index % len(gpus)]}"
            environment |= _of_gpu(gpus[index % len(gpus)])
        environment |= share_of(max(usable_cores() // number, 1))
        if ports:
            environment[METRICS_PORT.name] = str(ports[index])
        found.append(Slot(_name(pool, where, index), pool, environment, tested=bool(gpus)))
    return found


def _name(pool: str, where: str, index: int) -> str:
    return f"{socket.gethostname()}-{pool}-{where}-{index}"


def _of_gpu(gpu: str) -> dict[str, str]:
    """Return the environment of a worker that is bound to a GPU."""
    return {
        "CUDA_VISIBLE_DEVICES": gpu,
        # As nvidia-smi counts them; CUDA's own order begins with the fastest.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # A device that waits for a question costs more than it.
        "PREFECT_WORKER_QUERY_SECONDS": os.environ.get("PREFECT_WORKER_QUERY_SECONDS", "1"),
    }


def _metrics_ports(first: int | None, workers: int) -> range:
    """Return a port for each worker; none where there is no first one."""
    if first is None:
        return range(0)
    if first + workers - 1 > METRICS_PORT.most:
        raise AutolabelError(
            f"metrics of {workers} workers need as many ports from {first} on, and "
            f"{METRICS_PORT.most} is the last one: begin with a lower one"
        )
    return range(first, first + workers)


def _environment() -> dict[str, str]:
    """Return settings of the workers and their flow runs; what the user has set stays."""
    values = {
        "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        # None but what is due: a worker that is stopping must not get its own shard back.
        "PREFECT_WORKER_PREFETCH_SECONDS": "0",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "sam2_core,tasks,flows",
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    unset = {name: value for name, value in values.items() if name not in os.environ}
    return {**unset, "PATH": path}
