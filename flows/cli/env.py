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
        *_with_content(CLIENT_AUTH, auth_file(folder())),
    ]


def _fiftyone() -> list[str]:
    from tasks.dataset.database import VALIDATION_VARIABLE, running_server
    from tasks.dataset.mongod import URI_VARIABLE

    server = running_server()
    if not server:
        return []
    return [
        f"export {URI_VARIABLE}={shlex.quote(server.uri)}",
        f"export {VALIDATION_VARIABLE}=false",  # of MongoDB's version, which works
    ]


def _with_content(variable: str, file: Path) -> list[str]:
    """Let the shell read a file's line itself: what is printed may be seen by others.

    `read` is part of every shell, so no PATH is needed. It also answers 1 where the last line of a
    file has no end, so the variable decides. A file that is not there is an error.
    """
    return [
        f"unset {variable}; IFS= read -r {variable} < {shlex.quote(str(file))} || "
        f'[ -n "${{{variable}-}}" ]',
        f"export {variable}",
    ]
