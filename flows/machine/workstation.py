"""`autolabel up`: Prefect's server, its deployments, the database, the workers and the App."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from flows.machine.services import Service, answers, folder, python, running, start, wait_until
from flows.server.api import choose_api
from flows.server.deployments import CPU_POOL, GPU_POOL, deploy
from flows.server.own import configured_api
from flows.server.submit import workers_online
from sam2_core.redaction import redact
from tasks.dataset.database import running_server

PREFECT_PORT = 4200
AUTH = "PREFECT_SERVER_API_AUTH_STRING"
CLIENT_AUTH = "PREFECT_API_AUTH_STRING"


def bring_up(
    port: int = PREFECT_PORT,
    workers: int | None = None,
    app_port: int | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> dict[str, str]:
    """Start whatever of a workstation does not run yet; returns addresses by name.

    Args:
        port: of Prefect's server on 127.0.0.1; ignored when it runs already or one is configured.
        workers: GPU workers; one for each GPU, else one, when None.
        app_port: where FiftyOne's App is to listen; no App when None.
        tell: hears what is being started.

    Raises:
        AutolabelError: something does not start.

    """
    api = _bring_up_server(port, tell)
    tell("deployments and automations")
    deploy()
    tell("database")
    database = start("database", python("flows.machine.database_process"))
    wait_until(database, lambda: running_server() is not None)
    for pool, count in ((GPU_POOL, workers), (CPU_POOL, 1)):
        tell(f"workers of pool {pool}")
        more = ["--count", str(count)] if count else []
        worker = start(f"worker-{pool}", python("flows.cli.main", "worker", "--pool", pool, *more))
        wait_until(worker, partial(workers_online, pool))
    if app_port is not None:
        tell("the App")
        start(
            "app",
            python("flows.machine.app_process", str(app_port)),
            f"http://127.0.0.1:{app_port}",
        )
    return {"prefect": api, **{one.name: one.url or f"process {one.pid}" for one in _others()}}


def _others() -> Iterator[Service]:
    return (one for name, one in running().items() if name != "server")


def _bring_up_server(port: int, tell: Callable[[str], object]) -> str:
    if AUTH in os.environ:
        os.environ.setdefault(CLIENT_AUTH, os.environ[AUTH])
    chosen = configured_api()
    if chosen:
        tell(f"using the Prefect server at {redact(chosen)}")
        return chosen
    tell("Prefect's server")
    known = running().get("server")
    api = known.url if known else f"http://127.0.0.1:{port}/api"
    if not known and answers(f"{api}/health"):
        tell(f"using the Prefect server that already listens at {api}")
    else:
        command = python("prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
        server = start("server", command, api, **_server_environment())
        wait_until(server, lambda: answers(f"{api}/health"))
    choose_api(api)
    return api


def _server_environment() -> Mapping[str, str]:
    """Defaults for a server on one machine; what the user has set stays."""
    home = folder() / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    values = {
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_METRICS_ENABLED": "true",
        "DO_NOT_TRACK": "1",
    }
    return {name: value for name, value in values.items() if name not in os.environ}
