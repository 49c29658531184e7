"""The programs of a workstation: `up` hands them to its supervisor, `worker` its own to another.

There is a worker for each GPU that this process may use. Programs end with the process that started
them, even with one that was killed.
"""

import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sam2_core.types import AutolabelError
from tasks.processes import python

GPU_POOL, CPU_POOL = "gpu", "cpu"
GRACE_S = 120.0  # for shards to be given back
NUMBER = "%(process_num)d"  # of one process of a program, as supervisord writes it
WORKER_NUMBER = "AUTOLABEL_WORKER_NUMBER"  # set for each process of `workers`

SETPRIV = shutil.which("setpriv") or "/usr/bin/setpriv"  # also when the PATH is short
# Before a command line: it gets SIGTERM when its parent ends.
TIED = (SETPRIV, "--pdeathsig", "TERM", "--") if os.access(SETPRIV, os.X_OK) else ()

TAKES_NO_WORK = " takes no work: "  # what a worker says of itself in its last line
LISTED_WITHIN_S = 60.0


@dataclass(frozen=True)
class Program:
    """A program that a supervisor keeps running.

    Attributes:
        name: server, database, app, worker-POOL.
        command: command line.
        order: programs of a lower order start first and stop last.
        port: of 127.0.0.1 that it gets as its standard input, listening; none when 0.
        path: behind the port in its address.
        count: how many processes run it; one of those with a port.
        environment: added to the supervisor's; a value may be NUMBER.

    """

    name: str
    command: Sequence[str]
    order: int = 9
    port: int = 0
    path: str = ""
    count: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


def tie_to_parent(number: signal.Signals) -> None:
    """Have this process get a signal when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


SERVER = Program("server", python("flows.server.process", "server"), order=1, path="/api")
DATABASE = Program("database", python("flows.server.process", "database"), order=2)
APP = Program("app", python("tasks.review.app", "0"))


def workers(pool: str, count: int | None = None) -> Program:
    """Return the program of a pool's workers on this machine.

    Args:
        pool: work pool. Those of the planning pool use no GPU, and go on beside a sick one.
        count: how many; one for each GPU, else one, when None.

    """
    environment, gpus = {WORKER_NUMBER: NUMBER}, list[str]()
    if pool != CPU_POOL:
        try:
            gpus = gpu_ids()
        except UnlistedError:  # the worker asks the driver again, and takes no work meanwhile
            pass
        else:  # as they are now: a worker must not get another's GPU when its own is gone
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    count = count or len(gpus) or 1
    command = python("flows.cli.main", "worker", "--pool", pool, "--workers", str(count))
    return Program(f"worker-{pool}", command, count=count, environment=environment)


class UnlistedError(AutolabelError):
    """An NVIDIA driver is here, and which GPUs may be used is not known."""


def gpu_ids() -> list[str]:
    """GPUs that this process may use: `CUDA_VISIBLE_DEVICES`, else all that nvidia-smi lists.

    As CUDA reads the variable: indices, and UUIDs of GPUs and MIG devices or their beginnings, up
    to the first that names nothing. None where it is empty or -1, or where no nvidia-smi is. Of a
    GPU that was cut into MIG devices CUDA takes the first, unless the variable names others.

    Raises:
        UnlistedError: nvidia-smi is here and cannot be run, hangs, fails or lists none; or the
            variable names none.

    """
    chosen, smi = os.environ.get("CUDA_VISIBLE_DEVICES"), shutil.which("nvidia-smi")
    if chosen is None:
        return _listed(smi) if smi else []
    names = [name.strip() for name in chosen.split(",")]
    known = itertools.takewhile(re.compile(r"\d+|(GPU|MIG)-.*").fullmatch, names)
    found = list(dict.fromkeys(known))
    if smi and not found and names[0] not in {"", "-1"}:
        raise UnlistedError(
            f"CUDA_VISIBLE_DEVICES={chosen} names no GPU: `nvidia-smi -L` lists what is here, "
            "and empty it means the processor"
        )
    return found


def _listed(smi: str) -> list[str]:
    try:
        asked = subprocess.Popen(
            [smi, "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        said, _ = asked.communicate(timeout=LISTED_WITHIN_S)
        found = re.findall(r"^GPU (\d+):", said, re.MULTILINE)
        if found and asked.returncode == 0:
            return found
    except OSError as error:
        said = f"cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        asked.kill()  # and not waited for, as `subprocess.run` does: the driver may hold it
        said = f"nothing within {LISTED_WITHIN_S:g} s, so the driver hangs"
    said = " ".join(said.split())[:200] or "nothing"
    raise UnlistedError(
        f"`nvidia-smi -L` lists no GPU (it says: {said}); CUDA_VISIBLE_DEVICES names GPUs without "
        "it, and empty it means the processor"
    )
