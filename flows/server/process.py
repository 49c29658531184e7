"""A Prefect server with its database, or FiftyOne's database, kept until SIGTERM.

`python -m flows.server.process server|database`. A server listens on the socket that is its
standard input.

FiftyOne's database is stopped by the last process that uses it; `up` starts this one to use it
until `down`. Where it is killed this one ends, and starts it again when its supervisor does.
"""

import os
import signal
import socket
import sys
import time

SERVICES = "PREFECT_SERVER_SERVICES_"
HOST = "127.0.0.1"  # where the pages ask the API: `localhost` would be another origin to a browser
# Of the server of a workstation; what the user has set stays.
SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_METRICS_ENABLED": "true",
    # By default a server reads and records events one at a time.
    f"{SERVICES}TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    f"{SERVICES}TASK_RUN_RECORDER_BATCH_SIZE": "100",
    f"{SERVICES}TRIGGERS_READ_BATCH_SIZE": "100",
    f"{SERVICES}EVENT_PERSISTER_READ_BATCH_SIZE": "100",
    f"{SERVICES}EVENT_PERSISTER_BATCH_SIZE": "100",
    # In memory, its default, a lease of a killed server is lost and cannot be had again.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
        "prefect.server.concurrency.lease_storage.filesystem"
    ),
    # Without these, runs with their logs and artifacts would stay for ever.
    f"{SERVICES}DB_VACUUM_ENABLED": "events,flow_runs",
    f"{SERVICES}DB_VACUUM_RETENTION_PERIOD": str(60 * 24 * 3600),
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P3D",
}


def main() -> None:
    """Serve until SIGTERM."""
    from flows.server import postgres
    from sam2_core.types import AutolabelError
    from tasks.processes import collect_seldom

    collect_seldom()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the database is released
    try:
        if sys.argv[1] == "database":
            from tasks.dataset.database import ensure_database, running_server

            ensure_database()
            while running_server():
                time.sleep(0.5)
            return
        with postgres.running() as database:
            # Prefect has to know it when it is imported.
            os.environ["PREFECT_API_DATABASE_CONNECTION_URL"] = database.url
            _serve(socket.socket(fileno=0))
    except AutolabelError as error:
        sys.exit(str(error))  # a sentence, which `up` passes on


def _serve(listener: socket.socket) -> None:
    from flows.machine.services import folder
    from flows.server.sign_in import SERVER_AUTH, SignIn, known_auth
    from tasks.review.door import Door

    origin = f"http://{HOST}:{listener.getsockname()[1]}"
    guarding = {
        "PREFECT_API_DATABASE_MIGRATE_ON_START": "false",  # its tables are there
        SERVER_AUTH: os.environ.get(SERVER_AUTH) or known_auth(folder()),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origin,  # its own pages alone read its answers
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_UI_API_URL": f"{origin}/api",
    }
    os.environ |= guarding | SETTINGS | os.environ

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_API_KEEPALIVE_TIMEOUT as KEEP_ALIVE_S

    app = create_app(final=True)
    config = uvicorn.Config(
        Door(SignIn(app), is_ours={HOST}.__contains__), lifespan="on", access_log=False,
        timeout_graceful_shutdown=1, timeout_keep_alive=KEEP_ALIVE_S.value(),
        log_level="warning",
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
