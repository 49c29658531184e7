"""The process of our own Prefect API: `python -m flows.server.process`.

Binds a free port of 127.0.0.1, prints it, serves, and ends when its standard input closes: so it
never outlives the command that started it, even one that was killed.
"""

from __future__ import annotations

import os
import signal
import socket
import threading


def _end_with_parent() -> None:
    # Not through sys.stdin: its lock, held by a thread that waits, turns the end of a server that
    # fails into a fatal error of the interpreter, and that is all its log then ends with.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until standard input closes or SIGTERM comes."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)  # noqa: T201
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(webserver_only=True, final=True)
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
