"""`autolabel worker`: a worker for each GPU of this machine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import click

from flows.cli.common_options import PORT, FloatRange
from flows.machine.programs import GRACE_S, workers
from flows.machine.services import in_foreground
from flows.machine.worker import Worker, work
from sam2_core.types import AutolabelError


@click.command(short_help="Work on shards: one worker per GPU.")
@click.option("--pool", default="gpu", help="Work pool.")
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="Number of workers.  [default: one per GPU, else 1]",
)
@click.option(
    "--grace",
    type=FloatRange(0),
    default=GRACE_S,
    metavar="SECONDS",
    help="How long to wait for shards to be given back when stopped.",
)
@click.option(
    "--metrics-port",
    type=PORT,
    metavar="PORT",
    help="Prometheus metrics of the first worker, on 127.0.0.1; the next one takes PORT+1.",
)
@click.option("--number", type=click.IntRange(0), hidden=True)
def command(
    pool: str, count: int | None, grace: float, metrics_port: int | None, number: int | None
) -> None:
    """Take runs from a work pool until stopped, with one `prefect worker` per GPU.

    On SIGTERM or Ctrl-C it finishes the current chunk and gives every shard back to the queue.
    """
    from flows.server.api import use_api

    use_api()
    if number is None:
        in_foreground(workers(pool, count, grace, metrics_port))
    else:
        _work(Worker(pool, number, count or 1, metrics_port), grace)


def _work(worker: Worker, grace_s: float) -> None:
    """Run one worker; its supervisor starts it again, and reads here why it takes no work."""
    from flows.server.fleet import join
    from flows.server.submit import sign_off
    from flows.server.watching import looking_after

    @contextlib.contextmanager
    def online(offers: Sequence[str]) -> Iterator[None]:
        join(worker.pool, worker.name, offers)
        click.echo(f"{worker.name} takes work", err=True)
        try:
            with looking_after():
                yield
        finally:
            sign_off(worker.pool, [worker.name])

    try:
        work(worker, grace_s, online)
    except (AutolabelError, OSError) as error:
        sys.exit(f"{worker.name} takes no work: {' '.join(str(error).split())}")
