"""The process of a Prefect server of ours: `python -m flows.server.process [SOCKET [kept]]`.

For one command it binds a free port of 127.0.0.1, prints it, serves without background services,
and ends when its standard input closes: so it never outlives the command that started it, even one
that was killed. With the number of an inherited, bound socket it keeps the whole server of a
workstation (`flows.server.keeper`) until SIGTERM; that server is the same with the word `kept`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

from flows.server.keeper import keep

KEPT = "kept"


def _for_one_command() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)  # noqa: T201
    return listener


def main() -> None:
    """Serve until standard input closes or SIGTERM comes, or keep the server that does."""
    whole = len(sys.argv) > 1
    if whole and sys.argv[-1] != KEPT:
        command = [sys.executable, "-m", "flows.server.process", sys.argv[1], KEPT]
        sys.exit(keep(command, int(sys.argv[1])))
    _serve(whole)


def _serve(whole: bool) -> None:
    from flows.server.sign_in import SERVER_AUTH, SignIn, guarding
    from tasks.processes import end_with_parent
    from tasks.review.door import Door

    listener = socket.socket(fileno=int(sys.argv[1])) if whole else _for_one_command()
    threading.Thread(target=end_with_parent, daemon=True).start()
    origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for name, value in guarding(os.environ[SERVER_AUTH], origin).items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_UI_API_URL", f"{origin}/api")

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_API_KEEPALIVE_TIMEOUT as KEEP_ALIVE_S

    app = create_app(webserver_only=not whole, final=True)
    config = uvicorn.Config(
        Door(SignIn(app)), lifespan="on", access_log=False, timeout_graceful_shutdown=1,
        log_level="warning" if whole else "error", timeout_keep_alive=KEEP_ALIVE_S.value(),
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
