"""The process of a flow run, as its worker starts it: `python -m flows.machine.flow_process`.

It asks the fork server (`flows.machine.fork_server`) for a process that has imported everything,
passes signals on to it, and ends as it ends. Where there is no server it becomes Prefect's engine
itself. Only the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

VARIABLE = "AUTOLABEL_FORK_SERVER"


def main() -> None:
    """Run the flow run of `PREFECT__FLOW_RUN_ID`."""
    connection = _connected()
    answers = connection.makefile("r") if connection else None
    if connection and answers and ask(connection):
        child = int(answers.readline() or 0)
        if child:
            _pass_signals(child)
            _end_as(answers.readline())
    os.execv(sys.executable, [sys.executable, "-m", "prefect.engine"])  # noqa: S606 - no shell


def _connected() -> socket.socket | None:
    address = os.environ.get(VARIABLE)
    if address:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            connection.connect(address)
            return connection
    return None


def ask(connection: socket.socket) -> bool:
    """Send what a process needs to be like this one."""
    values = {"environment": dict(os.environ), "folder": str(Path.cwd())}
    data = json.dumps(values).encode()
    try:
        socket.send_fds(connection, [len(data).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(data)
    except OSError:
        return False
    return True


def _pass_signals(child: int) -> None:
    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)


def _end_as(answer: str) -> None:
    """End with the same exit status or signal; without an answer as if killed."""
    code = int(answer or -signal.SIGKILL)
    if code >= 0:
        sys.exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
