"""Keeps a workstation's server, and its port: a small process that starts the large one.

Workers send the server's password to whoever listens on its port. This process holds the listening
socket, so that nobody else gets the port when the server dies: requests wait in the socket until
the server that is started again takes them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import FrameType

PAUSE_S = 1.0
# One that ends sooner failed to start, and starting it again would not help; a kill is no failure.
STARTED_S = 60.0
MOST_KILLS = 5


def keep(command: list[str], listener: int) -> int:
    """Run a server until SIGTERM comes or it fails to start; returns its exit status.

    Args:
        command: of the server, which ends when its standard input closes: with this process.
        listener: number of the socket that it inherits.

    """
    server: subprocess.Popen[bytes] | None = None
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        if server is not None:
            server.terminate()

    signal.signal(signal.SIGTERM, stop)
    kills = 0
    while True:
        began = time.monotonic()
        server = subprocess.Popen(command, pass_fds=[listener], stdin=subprocess.PIPE)
        if stopping:
            server.terminate()
        status = server.wait()
        started = time.monotonic() - began > STARTED_S
        kills = 1 if started else kills + 1
        if stopping or not (started or status < 0) or kills > MOST_KILLS:
            return status
        how = f"killed by signal {-status}" if status < 0 else f"with status {status}"
        line = f"{time.strftime('%H:%M:%S')}.000 | ERROR   | {__name__} - the server ended, {how}"
        print(f"{line}, and is started again", file=sys.stderr, flush=True)  # noqa: T201
        time.sleep(PAUSE_S)
