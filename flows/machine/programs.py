"""The programs of a workstation: `up` hands them to its supervisor, `worker` its own to another."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flows.machine.gpus import UnlistedError, gpu_ids
from sam2_core.machine import METRICS_PORT
from sam2_core.types import AutolabelError

GPU_POOL, CPU_POOL = "gpu", "cpu"
GRACE_S = 120.0  # for shards to be given back
NUMBER = "%(process_num)d"  # of one process of a program, as supervisord writes it


@dataclass(frozen=True)
class Program:
    """A program that a supervisor keeps running.

    Attributes:
        name: server, database, app, worker-POOL.
        command: command line; NUMBER in it is that of the process.
        order: programs of a lower order start first and stop last.
        port: of 127.0.0.1 that it gets as its standard input, listening; none when 0.
        path: behind the port in its address.
        count: how many processes run it; one of those with a port.
        environment: added to the supervisor's.

    """

    name: str
    command: Sequence[str]
    order: int = 9
    port: int = 0
    path: str = ""
    count: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


def python(*arguments: str) -> list[str]:
    """Command line of a Python module of this environment."""
    return [sys.executable, "-m", *arguments]


SERVER = Program("server", python("flows.server.process"), order=1, path="/api")
DATABASE = Program("database", python("flows.machine.database_process"), order=2)
APP = Program("app", python("tasks.review.app", "0"))


def workers(
    pool: str,
    count: int | None = None,
    grace_s: float = GRACE_S,
    metrics_port: int | None = None,
) -> Program:
    """Return the program of a pool's workers on this machine.

    Args:
        pool: work pool. Those of the planning pool use no GPU, and go on beside a sick one.
        count: how many; one for each GPU, else one, when None.
        grace_s: the longest to wait for flow runs to give their shards back.
        metrics_port: of the first worker's flow runs, the next has the next one; what
            `AUTOLABEL_METRICS_PORT` says when None.

    Raises:
        AutolabelError: there are not enough ports for metrics.

    """
    environment, gpus = {}, list[str]()
    if pool != CPU_POOL:
        try:
            gpus = gpu_ids()
        except UnlistedError:  # the worker asks the driver again, and takes no work meanwhile
            pass
        else:  # as they are now: a worker must not get another's GPU when its own is gone
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    count = count or len(gpus) or 1
    first = metrics_port or METRICS_PORT.read() or 0
    if first + count - 1 > METRICS_PORT.most:
        raise AutolabelError(
            f"metrics of {count} workers need as many ports from {first} on, and "
            f"{METRICS_PORT.most} is the last one: begin with a lower one"
        )
    command = [
        *python("flows.cli.main", "worker"), "--pool", pool, "--count", str(count),
        "--number", NUMBER, "--grace", f"{grace_s:g}",
    ]  # fmt: skip
    command += ["--metrics-port", str(first)] if first else []
    return Program(f"worker-{pool}", command, count=count, environment=environment)
