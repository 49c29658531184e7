"""`autolabel up`: starts Prefect's server, its deployments, the database, workers and the App."""

import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
from filelock import FileLock
from rich.console import Console

from flows.cli.common_options import PORT, json_option, print_json, workers_option
from flows.cli.display import say, stderr_console
from flows.cli.main import was_interrupted
from flows.machine.programs import APP, CPU_POOL, DATABASE, GPU_POOL, SERVER, workers
from flows.machine.services import (
    folder,
    running,
    running_api,
    start,
    wait_until,
)
from flows.server.api import choose_api, configured_api, use_api
from flows.server.sign_in import (
    CLIENT_AUTH,
    SERVER_AUTH,
    choose_auth,
    known_auth,
    sign_in_link,
    write_links,
)
from sam2_core.redaction import redact
from sam2_core.types import AutolabelError
from tasks.dataset.database import running_server
from tasks.processes import answers
from tasks.review.app import TOKEN_VARIABLE
from tasks.review.door import TOKEN, bind
from tasks.store.private_files import (
    close_file,
    private_folder,
    read_or_create_secret,
    read_secret,
)

PREFECT_PORT = 4200
OTHERS_SERVER = "set PREFECT_API_URL to use a Prefect server of your own"


def bring_up(
    port: int | None = None,
    count: int | None = None,
    app_port: int | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> dict[str, str]:
    """Start whatever of a workstation is not running yet; returns addresses by name.

    Args:
        port: of Prefect's server on 127.0.0.1; `PREFECT_PORT` when None.
        count: GPU workers; one for each GPU, else one, when None.
        app_port: where FiftyOne's App is to listen; no App when None.
        tell: hears what is waited for.

    Raises:
        AutolabelError: something does not start, or runs already otherwise than asked for here.

    """
    # Two at once would start two of what neither finds running.
    with FileLock(close_file(private_folder(folder()) / "up.lock")):
        refuse_ignored(port, count, app_port)
        server = running().get("server")
        of_prefect = urlsplit(server.url).port if server else port or PREFECT_PORT
        if app_port == of_prefect and not configured_api():
            raise AutolabelError(f"Prefect's server has port {app_port}: give the App another one")
        if app_port is not None and "app" not in running():
            with bind(app_port):  # told in words, before anything is started
                pass
        api = _bring_up_server(port or PREFECT_PORT, tell, partial(_begin, count))
        from flows.server.deployments import deploy
        from flows.server.fleet import workers_online

        tell("deployments")
        deploy()
        tell("the database")
        started = running()
        wait_until(started[DATABASE.name], lambda: running_server() is not None)
        for pool in (GPU_POOL, CPU_POOL):
            tell(f"the worker of pool {pool} to come online")
            wait_until(started[f"worker-{pool}"], partial(workers_online, pool))
        if app_port is not None:
            tell("the App")
            secret = read_or_create_secret(app_token_file(), partial(secrets.token_urlsafe, 32))
            app = start(replace(APP, port=app_port, environment={TOKEN_VARIABLE: secret}))
            wait_until(app, lambda: answers(app.url))
        found = {
            name: program.url or f"process {program.pid}" for name, program in running().items()
        }
        return {"prefect": found.pop(SERVER.name, api), **found}


def _begin(count: int | None) -> None:
    """Begin all that takes seconds before it needs the server, while that starts.

    Workers wait for it: the port that it will answer on is open already.
    """
    for program in (workers(GPU_POOL, count), workers(CPU_POOL, 1), DATABASE):
        start(program)
    from flows.server.deployments import described, flow_of

    for deployment in described():
        flow_of(deployment["entrypoint"])


def _bring_up_server(
    port: int, tell: Callable[[str], object], meanwhile: Callable[[], object] = lambda: None
) -> str:
    if SERVER_AUTH in os.environ:
        os.environ.setdefault(CLIENT_AUTH, os.environ[SERVER_AUTH])
    chosen = configured_api()
    if chosen:
        use_api()
        tell(f"the Prefect server at {redact(chosen)}")
        meanwhile()
        return chosen
    server = running().get("server")
    if server is None:
        with bind(port, OTHERS_SERVER):  # told in words, before anything is started
            pass
        choose_auth(folder())
        tell("Prefect's server")
        server = start(replace(SERVER, port=port))
    meanwhile()
    wait_until(server, lambda: answers(f"{server.url}/health"))
    choose_api(server.url, known_auth(folder()))
    return server.url


def app_token_file() -> Path:
    """Where the App's token is, for as long as it is not deleted."""
    return folder() / "app-token"


def sign_in_links() -> dict[str, str]:
    """Return the addresses that sign a browser in to what `up` has started, by name."""
    found = running()
    links = {}
    if "server" in found:
        links["Prefect"] = sign_in_link(found["server"].url, known_auth(folder()))
    if "app" in found:
        links["FiftyOne"] = f"{found['app'].url}/?{TOKEN}={read_secret(app_token_file())}"
    return links


def refuse_ignored(port: int | None, count: int | None, app_port: int | None) -> None:
    """Refuse options that would change nothing, for `up` leaves alone what runs.

    Args:
        port: of Prefect's server; None where none was asked for, as the others.
        count: of GPU workers.
        app_port: of the App.

    Raises:
        AutolabelError: naming the first such option, what runs, and how to get what was asked for.

    """
    found, chosen = running(), configured_api()
    if port and chosen and chosen.rstrip("/") != running_api():
        raise AutolabelError(
            f"--prefect-port {port} would be ignored: PREFECT_API_URL or a profile names the "
            f"server {redact(chosen)}; leave it out, or unset that for a server of `autolabel up`"
        )
    for name, what, option, asked in (
        ("server", "Prefect's server", "--prefect-port", port),
        ("app", "the App", "--app-port", app_port),
    ):
        there = urlsplit(found[name].url).port if name in found else asked
        if asked and there != asked:
            raise _runs_otherwise(f"{what} listens on port {there}", f"{option} {asked}")
    workers = found.get(f"worker-{GPU_POOL}")
    if count and workers and count != workers.count:
        told = f"{workers.count} GPU {'worker runs' if workers.count == 1 else 'workers run'}"
        raise _runs_otherwise(told, f"--workers {count}")


def _runs_otherwise(what: str, option: str) -> AutolabelError:
    return AutolabelError(
        f"{what} already, and `up` leaves alone what runs: for {option} run `autolabel down` "
        f"(running shards go back to the queue), then `autolabel up {option}`"
    )


@click.command()
@click.option(
    "--prefect-port",
    type=PORT,
    metavar="PORT",
    help=f"Port of Prefect's server.  [default: {PREFECT_PORT}]",
)
@workers_option
@click.option("--app-port", type=PORT, metavar="PORT", help="Also start FiftyOne's App there.")
@json_option
def command(
    prefect_port: int | None, count: int | None, app_port: int | None, as_json: bool
) -> None:
    """Start whatever is not running yet: PostgreSQL, Prefect's server, its deployments, FiftyOne's
    database, a worker for each GPU and one for planning. Everything listens on 127.0.0.1 or a
    socket only and asks for a password; the printed links sign your browser in.
    """  # noqa: D205
    console, began = stderr_console(), time.monotonic()
    status = console.status("starting")

    def tell(what: str) -> None:
        """Say what is waited for; in a log each wait has its line."""
        status.update(f"waiting for {what}")
        if not console.is_terminal:
            console.print(f"{time.monotonic() - began:5.1f} s  waiting for {what}")

    try:
        with status:
            started = bring_up(prefect_port, count, app_port, tell)
    except (Exception, KeyboardInterrupt) as error:
        if not was_interrupted(error):
            raise
        on = "nothing of it runs: `autolabel up` begins again"
        if names := ", ".join(running()):
            on = f"what was started runs on ({names}): `autolabel up` starts the rest, "
            on += "`autolabel down` stops it"
        raise KeyboardInterrupt(f"stopped by Ctrl-C; {on}") from error
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
    if links and not console.is_terminal:  # a log: it may be read by others
        console.print(
            f"the links in {started['sign_in']} sign a browser in to {' and '.join(links)}; only "
            "you can read that file",
            soft_wrap=True,
        )
    elif links:  # not through the console, which shows no secret; these are for this terminal
        say("these links are for you alone, they sign your browser in:", err=True)
        for name, link in links.items():
            say(f"{name:<12} {link}", err=True)
