"""`autolabel down`: stop what `autolabel up` started."""

from __future__ import annotations

import click


@click.command(short_help="Stop what `up` started.")
def command() -> None:
    """Stop exactly what `autolabel up` started; running shards go back to the queue."""
    from flows.machine.services import stop_all

    stopped = stop_all()
    click.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing of ours is running")
