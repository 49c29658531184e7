"""`autolabel worker`: a worker for each GPU of this machine."""

from __future__ import annotations

import click

from flows.cli.common_options import PORT, FloatRange


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
    default=120.0,
    metavar="SECONDS",
    help="How long to wait for shards to be given back when stopped.",
)
@click.option(
    "--metrics-port",
    type=PORT,
    metavar="PORT",
    help="Prometheus metrics of the first worker, on 127.0.0.1; the next one takes PORT+1.",
)
def command(pool: str, count: int | None, grace: float, metrics_port: int | None) -> None:
    """Take runs from a work pool until stopped, with one `prefect worker` per GPU.

    On SIGTERM or Ctrl-C it finishes the current chunk and gives every shard back to the queue.
    """
    from flows.machine.worker import Keeper
    from flows.server.api import use_api
    from flows.server.deployments import CPU_POOL
    from flows.server.submit import sign_off
    from flows.server.watching import looking_after

    use_api()
    # Pool `cpu` plans and loads.
    workers = Keeper(pool, count, metrics_port, grace, bound=pool != CPU_POOL)
    with looking_after():
        names = workers.run()
    sign_off(pool, names)
