"""The process of one worker: `python -m flows.machine.worker_process POOL NAME`.

It is Prefect's process worker with two differences. It asks for work only when it is idle, and at
once again when others were faster. And a flow run's process is `flows.machine.flow_process` at
once, while Prefect prepares a folder in a process that then becomes the flow run's: Python and
Prefect are imported twice, for 5 CPU seconds. Our deployments have no code to fetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prefect.utilities.processutils import command_to_string, setup_signal_handlers_worker
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# How long to wait, at least, for Prefect to say that a run is ours.
TAKEN_S = (0.1, 0.4)
TRIES = 10
# How often a busy worker asks, and how often it looks whether it is idle.
BUSY_S, LOOK_S = 20.0, 0.2
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)  # so that nothing is found and sent


class OurConfiguration(ProcessJobConfiguration):
    """Starts `flows.machine.flow_process` where neither pool nor deployment names a command."""

    def prepare_for_flow_run(self, *args: Any, **kwargs: Any) -> None:
        """Fill in what a flow run decides."""
        self.command = self.command or command_to_string(
            [sys.executable, "-m", "flows.machine.flow_process"]
        )
        super().prepare_for_flow_run(*args, **kwargs)


def poll_when_idle(worker: ProcessWorker) -> Callable[[], Coroutine[Any, Any, list[FlowRun]]]:
    """Return the worker's poll: at once when it becomes idle, and again when others were faster.

    Workers that are idle see the same runs, and all but one of them would wait for the next poll. A
    worker that is busy could take nothing, and stumbles over its own run when that is scheduled
    again before it has let go of it; now and then it asks all the same, because Prefect calls
    a pool ready by when it was asked last.
    """
    poll = worker.get_and_submit_flow_runs

    async def until_idle() -> None:
        asked_s = time.monotonic()
        while worker.limiter.borrowed_tokens:
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - asked_s > BUSY_S:
                asked_s = time.monotonic()
                await worker.client.get_scheduled_flow_runs_for_work_pool(
                    worker.work_pool.name, scheduled_before=LONG_AGO
                )

    async def poll_again() -> list[FlowRun]:
        for _ in range(TRIES):
            await until_idle()
            taken = await poll()
            if not taken:
                break
            await asyncio.sleep(random.uniform(*TAKEN_S))  # noqa: S311
        return taken

    return poll_again


def main() -> None:
    """Work until SIGTERM or Ctrl-C."""
    pool, name = sys.argv[1:]
    setup_signal_handlers_worker(os.getpid(), f"worker {name}", print)
    worker = ProcessWorker(work_pool_name=pool, name=name, limit=1, create_pool_if_not_found=False)
    worker.job_configuration = OurConfiguration
    # An attribute of this one worker: a subclass would take Prefect's type "process" for itself.
    worker.get_and_submit_flow_runs = poll_when_idle(worker)  # type: ignore[method-assign]
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(worker.start(printer=print))


if __name__ == "__main__":
    main()
