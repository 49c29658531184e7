"""`autolabel worker`: a worker for each GPU of this machine."""

import os

import click

from flows.cli.common_options import PORT, FloatRange, workers_option
from flows.machine.programs import WORKER_NUMBER, workers
from flows.machine.services import in_foreground
from flows.server.worker import Worker, work
from sam2_core.machine import METRICS_PORT


@click.command()
@click.option("--pool", metavar="NAME", default="gpu", help="Work pool.")
@workers_option
@click.option(
    "--metrics-port", type=PORT, metavar="PORT",
    help="Prometheus metrics of the first worker, on 127.0.0.1; the next one takes PORT+1.",
)  # fmt: skip
@click.option(
    "--until-idle", type=FloatRange(0), metavar="SECONDS",
    help="One worker, which ends after so long without a run and, when its machine fails, with "
    "exit code 1: for a scheduler of jobs.",
)  # fmt: skip
def command(
    pool: str, count: int | None, metrics_port: int | None, until_idle: float | None
) -> None:
    """Take runs from a work pool until stopped, with one of Prefect's workers per GPU.

    On SIGTERM or Ctrl-C it finishes the current chunk and gives every shard back to the queue.
    """
    if metrics_port:
        os.environ[METRICS_PORT.name] = str(metrics_port)
    METRICS_PORT.read()  # refused before anything is started
    if until_idle is not None:
        if (count or 1) > 1:
            raise click.UsageError("--until-idle runs one worker: leave out --workers")
        work(Worker(pool, 0, 1), until_idle)
        return
    number = os.environ.pop(WORKER_NUMBER, None)  # of one that another has started
    if number is not None:
        work(Worker(pool, int(number), count or 1))
        return
    from flows.server.api import use_api

    use_api()
    in_foreground(workers(pool, count))
