"""`autolabel up`: start what a workstation needs."""

from __future__ import annotations

import json

import click

from flows.machine.workstation import PREFECT_PORT
from sam2_core.redaction import redact


@click.command(short_help="Start server, database and workers.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=PREFECT_PORT, show_default=True,
    help="Of Prefect's server.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N", help="GPU workers.")
@click.option("--app-port", type=click.IntRange(1, 65535), help="Start FiftyOne's App there too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(port: int, workers: int | None, app_port: int | None, as_json: bool) -> None:
    """Start whatever does not run yet: a Prefect server on SQLite, the deployments, the database,
    a worker for each GPU and one for planning. Everything listens on 127.0.0.1 alone.
    """  # noqa: D205
    from flows.cli.display import stderr_console
    from flows.machine.services import folder
    from flows.machine.workstation import bring_up

    console = stderr_console()
    with console.status("starting") as status:
        started = bring_up(port, workers, app_port, lambda what: status.update(f"starting {what}"))
    started = {name: redact(where) for name, where in started.items()}
    for name, where in started.items():
        console.print(f"[dim]{name:<12}[/] {where}")
    console.print(f"[dim]{'dashboard':<12}[/] {started['prefect'].removesuffix('/api')}")
    console.print(f"[dim]{'logs':<12}[/] {folder()}")
    console.print(
        "submit work with [bold]autolabel backfill[/], look at it with [bold]autolabel status[/], "
        "stop all of this with [bold]autolabel down[/]"
    )
    if as_json:
        click.echo(json.dumps(started, indent=2))
