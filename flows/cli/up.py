"""`autolabel up`: start what a workstation needs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from flows.cli.common_options import PORT, json_option, print_json
from flows.cli.main import was_interrupted
from sam2_core.redaction import redact

if TYPE_CHECKING:
    from rich.console import Console

PREFECT_PORT = 4200


@click.command(short_help="Start server, database and workers.")
@click.option("--port", type=PORT, help=f"Port of Prefect's server.  [default: {PREFECT_PORT}]")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="GPU workers.")
@click.option("--app-port", type=PORT, help="Also start FiftyOne's App there.")
@json_option
def command(port: int | None, workers: int | None, app_port: int | None, as_json: bool) -> None:
    """Start whatever is not running yet: PostgreSQL, Prefect's server, its deployments, FiftyOne's
    database, a worker for each GPU and one for planning. Everything listens on 127.0.0.1 or a
    socket only and asks for a password; the printed links sign your browser in.
    """  # noqa: D205
    try:
        _up(port, workers, app_port, as_json=as_json)
    except (Exception, KeyboardInterrupt) as error:
        if not was_interrupted(error):
            raise
        raise KeyboardInterrupt(_what_runs_on()) from error


def _what_runs_on() -> str:
    from flows.machine.services import running

    names = ", ".join(running())
    if not names:
        return "stopped by Ctrl-C; nothing of it runs: `autolabel up` begins again"
    return (
        f"stopped by Ctrl-C; what was started runs on ({names}): `autolabel up` starts the rest, "
        "`autolabel down` stops it"
    )


def _up(port: int | None, workers: int | None, app_port: int | None, *, as_json: bool) -> None:
    from flows.cli.display import stderr_console
    from flows.cli.up_run import bring_up, sign_in_links
    from flows.machine.services import folder
    from flows.server.sign_in import write_links

    console = stderr_console()
    began = time.monotonic()
    with console.status("starting") as status:

        def tell(what: str) -> None:
            """Say what is waited for; in a log each wait has its line."""
            status.update(f"waiting for {what}")
            if not console.is_terminal:
                console.print(f"{time.monotonic() - began:5.1f} s  waiting for {what}")

        started = bring_up(port, workers, app_port, tell)
    console.print(f"up in {time.monotonic() - began:.1f} s")
    started = {name: redact(where) for name, where in started.items()}
    links = sign_in_links()
    if links:
        started["sign_in"] = str(write_links(folder(), links))
    for name, where in started.items():
        console.print(f"[dim]{name:<12}[/] {where}", soft_wrap=True)
    console.print(f"[dim]{'logs':<12}[/] {folder()}", soft_wrap=True)
    _show_links(console, links, started)
    console.print(
        "submit work with [bold]autolabel backfill[/], look at it with [bold]autolabel status[/], "
        "stop all of this with [bold]autolabel down[/]"
    )
    print_json(as_json, started)


def _show_links(console: Console, links: Mapping[str, str], started: Mapping[str, str]) -> None:
    """Print links that sign a browser in on a terminal, and where they are to anything else."""
    if not links:
        return
    if not console.is_terminal:  # a log: it may be read by others
        console.print(
            f"the links in {started['sign_in']} sign a browser in to {' and '.join(links)}; only "
            "you can read that file",
            soft_wrap=True,
        )
        return
    # Not through the console, which shows no secret; these are for this terminal.
    click.echo("these links are for you alone, they sign your browser in:", err=True)
    for name, link in links.items():
        click.echo(f"{name:<12} {link}", err=True)
