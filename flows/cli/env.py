"""`autolabel env`: what other programs need to find what `up` or `review` runs."""

import shlex
import sys

import click


@click.command()
def command() -> None:
    """Print `export` lines for the Prefect server and the database that `up` or `review` runs:
    eval "$(autolabel env)" lets `prefect` and `fiftyone` of this environment use them.

    The lines hold no password, but read it from files that only you can read. Exit code 1: nothing
    runs, and nothing is printed.
    """  # noqa: D205
    lines = [*_prefect(), *_fiftyone()]
    if not lines:
        click.echo(
            "no server of ours runs: `autolabel up` or `autolabel review` starts it", err=True
        )
        sys.exit(1)
    click.echo("\n".join(lines))


def _prefect() -> list[str]:
    """Return lines for Prefect. The shell reads the password itself: others may see its input.

    `read` is part of every shell, so no PATH is needed. It also answers 1 where the last line of a
    file has no end, so the variable decides. A file that is not there is an error.
    """
    from flows.machine.services import folder, running_api
    from flows.server.sign_in import CLIENT_AUTH, auth_file

    api = running_api()
    if not api:
        return []
    file = shlex.quote(str(auth_file(folder())))
    return [
        f"export PREFECT_API_URL={shlex.quote(api)}",
        f'unset {CLIENT_AUTH}; IFS= read -r {CLIENT_AUTH} < {file} || [ -n "${{{CLIENT_AUTH}-}}" ]',
        f"export {CLIENT_AUTH}",
        'export DO_NOT_TRACK="${DO_NOT_TRACK-1}"',
    ]


def _fiftyone() -> list[str]:
    from tasks.dataset.database import URI_VARIABLE, VALIDATION_VARIABLE, running_server

    server = running_server()
    if not server:
        return []
    return [
        f"export {URI_VARIABLE}={shlex.quote(server.uri)}",
        f"export {VALIDATION_VARIABLE}=false",  # of MongoDB's version, which works
    ]
