"""Flow runs of a worker in a process that was there before them, its imports done.

A new process needs seconds until it can do anything, while the device waits. So beside each run one
process more is started (flows/machine/spare.py), in which the next run begins. Prefect opens the
processes of its runs with `prefect.utilities.processutils.open_process`; here that hands out the
one that waits. To Prefect it is a process like any other: it is signalled, killed, waited for, and
its output streamed, as if it had just been started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.number_variables import SPARE_PROCESS
from tasks.pipeline.step_interpreters import EXPECTED_VARIABLE

if TYPE_CHECKING:
    from anyio.abc import Process

# What Prefect tells each run alone.
OF_ONE_RUN = "PREFECT__"
ENGINE = ["-m", "prefect.engine"]
# The cores are the new run's while it begins; but on a fast device a shard may last few seconds.
BEGIN_AFTER_S = 1.0
SPARE = [sys.executable, "-m", "flows.machine.spare"]
HOW_TO_LOOK = "`python -m flows.machine.spare < /dev/null` says why, if it fails there, too"

Open = Callable[..., AbstractAsyncContextManager["Process"]]


def install() -> None:
    """Let this process's flow runs begin in processes that wait for them, if that is wanted."""
    if SPARE_PROCESS.usable() != 1 or not sys.platform.startswith("linux"):
        return
    from prefect.utilities import processutils

    folder = tempfile.mkdtemp(prefix="expected-")  # in the worker's own, which goes with it
    os.environ[EXPECTED_VARIABLE] = str(Path(folder) / "expected")
    processutils.open_process = SpareRuns(processutils.open_process).open_process


def common(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what several runs' environments have in common."""
    return {name: value for name, value in environment.items() if not name.startswith(OF_ONE_RUN)}


def is_engine(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command is Prefect's engine in this very Python."""
    python, *rest = command
    found = shutil.which(python, path=environment.get("PATH"))
    ours = Path(sys.executable).parent
    return rest == ENGINE and bool(found) and Path(str(found)).parent == ours


class SpareRuns:
    """Opens processes, and has one more ready.

    Args:
        opened: what opens those that are not ready.

    """

    def __init__(self, opened: Open) -> None:
        self._open = opened
        self._ready: tuple[Process, dict[str, str]] | None = None
        self._beginning: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def open_process(self, command: list[str], **options: Any) -> AsyncIterator[Process]:
        """As Prefect's: the process is ended with the block."""
        environment = options.get("env")
        streams = options.get("stdout") == options.get("stderr") == subprocess.PIPE
        if not environment or not streams or not is_engine(command, environment):
            async with self._open(command, **options) as process:
                yield process
            return
        ready = await self._handed(environment, str(options.get("cwd") or Path.cwd()))
        self._begin_another(common(environment))
        if ready is None:
            async with self._open(command, **options) as process:
                yield process
            return
        try:
            yield ready
        finally:
            await _ended(ready, signal.SIGTERM)

    async def _handed(self, environment: Mapping[str, str], folder: str) -> Process | None:
        """Give a run to the process that waits for one with its environment, if there is one."""
        if self._beginning:
            self._beginning.cancel()
        if self._ready is None:
            return None
        (process, its), self._ready = self._ready, None
        line = json.dumps({"environment": dict(environment), "folder": folder}) + "\n"
        handed = False
        try:
            if has_ended(process):
                told("Process %d has ended, which was to be ready: %s", process.pid, HOW_TO_LOOK)
            elif its == common(environment) and process.stdin:
                await process.stdin.send(line.encode())
                told("The flow run begins in process %d, which was ready for it", process.pid)
                handed = True
        except Exception as error:  # noqa: BLE001 - it has ended: a new one does it
            told("Process %d was not ready: %s", process.pid, error)
        finally:
            if not handed:  # a part of a line begins no run
                await _ended(process, signal.SIGKILL)
        return process if handed else None

    def _begin_another(self, environment: dict[str, str]) -> None:
        self._beginning = asyncio.get_running_loop().create_task(self._begin(environment))

    async def _begin(self, environment: dict[str, str]) -> None:
        import anyio

        await asyncio.sleep(BEGIN_AFTER_S)
        try:
            self._ready = await anyio.open_process(SPARE, env=environment), environment
        except OSError as error:
            told("No process could be begun for the next flow run: %s", error)


def has_ended(process: Process) -> bool:
    """Whether a process has ended, though nobody has noticed it yet."""
    try:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, options) is not None
    except ChildProcessError:  # it was noticed
        return True


def told(text: str, *values: object) -> None:
    """Log it with what Prefect's worker logs."""
    from prefect.logging import get_logger

    get_logger("worker.spare").info(text, *values)


async def _ended(process: Process, number: signal.Signals) -> None:
    import anyio

    with contextlib.suppress(OSError):
        process.send_signal(number)
    with anyio.CancelScope(shield=True):
        await process.aclose()
