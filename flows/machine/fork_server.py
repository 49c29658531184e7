"""Starts the processes of flow runs as forks of one that has imported Prefect already.

Importing takes 3 seconds of CPU, in every process, and its device waits meanwhile. `autolabel
worker` runs `python -m flows.machine.fork_server SOCKET`; `flows.machine.flow_process` asks it
for a process.
Nothing is computed before the fork, and no device is touched. Python's own fork server
(`multiprocessing.forkserver`) does the same, for the children of one program only.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flows.machine.flow_process import VARIABLE

# What every shard needs in the end. Not `flows.shard`: with traces switched on it starts a thread.
PRELOADED = (
    "prefect.engine",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.artifacts",
    "prefect.utilities.visualization",
    "pydantic.v1",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pandas",  # pyarrow imports it, where it is, to recognise its types
    "flows.plan.backfill",
    "flows.machine.give_back",
    "flows.label",
    "flows.server.run_artifacts",
    "flows.shard_pipeline",
    "sam2_core.load",
    "sam2_core.segmenter",
    "tasks.store.check",
    "tasks.frames.download",
    "tasks.boxes.imported",
    "tasks.masks.segment",
    "tasks.frames.video",
    "tasks.boxes.yolox",
)
# Read when Python, a library or Prefect starts: a flow run with others needs its own start.
_AT_START = (
    "PYTHON",
    "LD_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "FSSPEC_",
    "OTEL_",
    "PREFECT_HOME",
    "PREFECT_LOGGING",
)
_ASKING_S = 5.0


@dataclass(frozen=True)
class Asked:
    """A process that was asked for.

    Attributes:
        connection: to whoever asked, and whose end ends the process.
        environment: the process's.
        folder: where it runs.
        streams: its standard streams.

    """

    connection: socket.socket
    environment: dict[str, str]
    folder: str
    streams: tuple[int, ...]

    @property
    def misfits(self) -> set[str]:
        """Variables because of which no fork of this process will do."""
        mine, theirs = _at_start(os.environ), _at_start(self.environment)
        return {name for name, _ in mine.items() ^ theirs.items()}


def _at_start(environment: Mapping[str, str]) -> dict[str, frozenset[str]]:
    # As words: Prefect passes lists on sorted.
    return {
        name: frozenset(re.split(r"[,\s]+", value))
        for name, value in environment.items()
        if name.startswith(_AT_START)
    }


def receive(connection: socket.socket) -> Asked:
    """Read what `flows.machine.flow_process` sends: a length, JSON, and three streams."""
    connection.settimeout(_ASKING_S)
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    length, data = int.from_bytes(head, "big"), b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionError("whoever asked has gone")
        data += part
    connection.settimeout(None)
    values = json.loads(data)
    return Asked(connection, values["environment"], values["folder"], tuple(streams))


class ForkServer:
    """Forks for whoever asks, and tells them how their process ended.

    Args:
        listener: where they ask.

    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener: socket.socket | None = listener
        self._children: dict[int, socket.socket] = {}
        self._ended, self._wakeup = os.pipe()
        for end in (self._ended, self._wakeup):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> Asked | None:
        """Return in each child what was asked, and None when our own parent and all have ended."""
        while self._listener or self._children:
            wanted: list[int] = [self._ended]
            if self._listener:
                wanted += [self._listener.fileno(), sys.stdin.fileno()]
            ready, _, _ = select.select(wanted, [], [])
            self._reap()
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1):
                self._close()
            elif self._listener and self._listener.fileno() in ready:
                asked = self._fork()
                if asked:
                    return asked
        return None

    def _fork(self) -> Asked | None:
        assert self._listener  # noqa: S101 - only asked while there is one
        connection, _ = self._listener.accept()
        try:
            asked = receive(connection)
        except (OSError, ValueError, KeyError):
            connection.close()
            return None
        misfits, child = asked.misfits, 0
        if misfits:
            names = ", ".join(sorted(misfits))
            print(f"flow run started on its own: {names} differ", file=sys.stderr)  # noqa: T201
        elif not (child := os.fork()):
            self._leave_to_parent(asked)
            return asked
        with contextlib.suppress(OSError):
            connection.sendall(f"{child}\n".encode())
        for stream in asked.streams:
            os.close(stream)
        if child:
            self._children[child] = connection
        else:
            connection.close()
        return None

    def _leave_to_parent(self, asked: Asked) -> None:
        """Let go, in a child, of everything but what was asked."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._ended)
        os.close(self._wakeup)
        self._close()
        for connection in self._children.values():
            connection.close()
        self._children.clear()
        for number, stream in enumerate(asked.streams):
            os.dup2(stream, number)
            os.close(stream)

    def _reap(self) -> None:
        """Tell how processes ended: the exit status, or the signal as a negative number."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._ended, 512):
                pass
        for child in tuple(self._children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                connection = self._children.pop(child)
                with contextlib.suppress(OSError):
                    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                connection.close()

    def _close(self) -> None:
        if self._listener:
            self._listener.close()
        self._listener = None


def run(asked: Asked) -> None:
    """Be the process that was asked for: Prefect's engine on one flow run."""
    os.environ.clear()
    os.environ.update(asked.environment)
    os.chdir(asked.folder)
    threading.Thread(target=_end_with, args=(asked.connection,), daemon=True).start()
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
    sys.argv = ["prefect.engine"]
    sys.modules.pop("prefect.engine", None)  # to be run as the program
    runpy.run_module("prefect.engine", run_name="__main__")


def _end_with(connection: socket.socket) -> None:
    """Die when whoever asked has died: it was killed, and its worker thinks that we are."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def serving(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run a fork server while the block runs; gives the environment by which it is found.

    It ends with this process, after the last flow run, however this process ends.

    Args:
        environment: of the flow runs, where it differs from this process's.

    """
    if sys.platform != "linux":
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="autolabel-") as folder:
        address = f"{folder}/fork"
        command = [sys.executable, "-m", "flows.machine.fork_server", address]
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env=os.environ | environment,
            start_new_session=True,  # Ctrl-C is for `autolabel worker`
        )
        try:
            yield {VARIABLE: address}
        finally:
            if server.stdin:
                server.stdin.close()


def main() -> None:
    """Serve until standard input closes, then until the last process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # who needs it says so
            importlib.import_module(name)
    gc.freeze()
    # Libraries' own threads (of OpenBLAS, of pyarrow's allocator) are made for being forked.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    listener.listen(64)
    asked = ForkServer(listener).serve()
    if asked:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run(asked)


if __name__ == "__main__":
    main()
