"""The process of one worker: `python -m flows.worker_process POOL NAME`.

It is Prefect's process worker with two differences. When others were faster to take a run, it does
not wait for its next poll. And a flow run's process is `flows.flow_process` at once, while Prefect
prepares its folder in a process that then becomes the flow run's: Python and Prefect are imported
twice, for 5 CPU seconds. Our deployments have no code to fetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from prefect.utilities.processutils import command_to_string, setup_signal_handlers_worker
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# After so long Prefect has said whether a run is ours.
TAKEN_S = 1.0
TRIES = 3


class OurConfiguration(ProcessJobConfiguration):
    """Starts `flows.flow_process` where neither pool nor deployment names a command."""

    def prepare_for_flow_run(self, *args: Any, **kwargs: Any) -> None:
        """Fill in what a flow run decides."""
        self.command = self.command or command_to_string(
            [sys.executable, "-m", "flows.flow_process"]
        )
        super().prepare_for_flow_run(*args, **kwargs)


def take_another(worker: ProcessWorker) -> Callable[[], Coroutine[Any, Any, list[FlowRun]]]:
    """Return the worker's poll, repeated at once when others were faster to take what it saw.

    Workers that are idle see the same runs, and all but one of them would wait for the next poll.
    """
    poll = worker.get_and_submit_flow_runs

    async def poll_again() -> list[FlowRun]:
        taken = await poll()
        for _ in range(TRIES):
            if not taken:
                break
            await asyncio.sleep(random.uniform(0.5, 1) * TAKEN_S)  # noqa: S311
            if worker.limiter.borrowed_tokens:
                break
            taken = await poll()
        return taken

    return poll_again


def main() -> None:
    """Work until SIGTERM or Ctrl-C."""
    pool, name = sys.argv[1:]
    setup_signal_handlers_worker(os.getpid(), f"worker {name}", print)
    worker = ProcessWorker(work_pool_name=pool, name=name, limit=1, create_pool_if_not_found=False)
    worker.job_configuration = OurConfiguration
    # An attribute of this one worker: a subclass would take Prefect's type "process" for itself.
    worker.get_and_submit_flow_runs = take_another(worker)  # type: ignore[method-assign]
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(worker.start(printer=print))


if __name__ == "__main__":
    main()
