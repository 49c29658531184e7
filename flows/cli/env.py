"""`autolabel env`: what other programs need to find what `up` or `review` runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click


@click.command(short_help="Let `prefect` and `fiftyone` find what runs here.")
def command() -> None:
    """Print `export` lines for the Prefect server and the database that `up` or `review` runs:
    eval "$(autolabel env)" lets `prefect` and `fiftyone` of this environment use them.

    The lines hold no password, but read it from files that only you can read. Exit code 1: nothing
    runs, and nothing is printed.
    """  # noqa: D205
    lines = [*_prefect(), *_fiftyone()]
    if not lines:
        click.echo(
            "nothing of ours is running: `autolabel up` or `autolabel review` starts it", err=True
        )
        sys.exit(1)
    for line in lines:
        click.echo(line)


def _prefect() -> list[str]:
    from flows.machine.services import folder, running_api
    from flows.server.sign_in import CLIENT_AUTH, auth_file

    api = running_api()
    if not api:
        return []
    return [
        f"export PREFECT_API_URL={shlex.quote(api)}",
        f"export {CLIENT_AUTH}={_content(auth_file(folder()))}",
    ]


def _fiftyone() -> list[str]:
    from tasks.dataset.database import VALIDATION_VARIABLE, running_server
    from tasks.dataset.mongod import URI_VARIABLE

    server = running_server()
    if not server:
        return []
    before, after = server.uri_around_password
    return [
        f"export {URI_VARIABLE}={shlex.quote(before)}{_content(server.password_file)}"
        f"{shlex.quote(after)}",
        f"export {VALIDATION_VARIABLE}=false",  # of MongoDB's version, which works
    ]


def _content(file: Path) -> str:
    """Let the shell read a file: what is printed may be seen by others."""
    return f'"$(cat {shlex.quote(str(file))})"'
