"""`autolabel nightly`: what every night labels, and whether it does."""

from __future__ import annotations

from typing import Any

import click

from flows.cli.options import backfill_params, label_options


@click.group(short_help="Label what is new, every night.")
def command() -> None:
    """Set what the nightly deployment labels, and turn its schedule on or off.

    `autolabel status` shows when the next run is planned and how the last one ended.
    """


@command.command("on")
@label_options
@click.option("--sequences", metavar="GLOB", default="*", help="Only sequences whose names match.")
@click.option(
    "--cron", default="0 1 * * *", show_default=True, metavar="RULE", help="When to start."
)
@click.option("--timezone", default="UTC", show_default=True, metavar="NAME", help="Its time zone.")
def turn_on(cron: str, timezone: str, **given: Any) -> None:
    """Label what is new below SOURCE whenever the schedule says so."""
    from flows.server.api import use_api
    from flows.server.nightly_schedule import turn_on as turn_schedule_on

    params = backfill_params(given)
    use_api()
    turn_schedule_on(params, cron, timezone)
    click.echo(f"nightly runs are on ({cron} {timezone}): `autolabel status` shows the next run")


@command.command("off")
def turn_off() -> None:
    """Turn the schedule off; the parameters stay."""
    from flows.server.api import use_api
    from flows.server.nightly_schedule import turn_off as turn_schedule_off

    use_api()
    turn_schedule_off()
    click.echo("nightly runs are off")
