"""`autolabel worker`: a worker for each GPU of this machine."""

from __future__ import annotations

import click


@click.command(short_help="Work on shards: one worker a GPU.")
@click.option("--pool", default="gpu", show_default=True, help="Work pool to take runs from.")
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="Workers.  [default: one a GPU, else 1]"
)
@click.option(
    "--grace", type=click.FloatRange(0), default=120.0, show_default=True, metavar="SECONDS",
    help="When stopped, the longest to wait for shards to be given back.",
)  # fmt: skip
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), metavar="PORT",
    help="Prometheus metrics on 127.0.0.1, of the first worker's runs here, the next one above.",
)  # fmt: skip
def command(pool: str, count: int | None, grace: float, metrics_port: int | None) -> None:
    """Take runs from a work pool until stopped: one `prefect worker` for each GPU, bound to it.

    On SIGTERM or Ctrl-C the chunk at hand is finished and every shard goes back to the queue.
    """
    from flows.machine.worker import run_workers, slots
    from flows.server.api import use_api

    use_api()
    places = slots(pool, count, metrics_port)
    click.echo(f"{len(places)} workers: {', '.join(place.name for place in places)}", err=True)
    run_workers(places, grace)
