"""What a workstation needs, as processes of this user: started once, stopped exactly.

The file `services.json` below the cache remembers each process with the moment it was started, so
that a process id which the system has used again is never mistaken for ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.machine.last_words import last_words
from sam2_core.cache import cache_folder, write_whole
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.pipeline.stopping import handling
from tasks.store.private_files import close_file, private_folder

START_S = 180.0
STOP_S = 150.0
POLL_S = 0.2
NEEDED_TO_END = ("database", "server", "postgres")  # by the others, in this order
NONE_WORKS = "no worker takes work: "  # in a worker's log, with reasons behind it
WELL_AGAIN = "is well again"  # there, behind the name of one that was refused
LINKS = "sign-in.html"  # what `up` has printed


@dataclass(frozen=True)
class Service:
    """A process that `up` started.

    Attributes:
        name: server, database, worker-gpu, worker-cpu.
        pid: process id.
        born: when the process was created, as the system tells it.
        url: where it listens, "" when nowhere.

    """

    name: str
    pid: int
    born: float
    url: str = ""

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return processes.born(self.pid) == self.born


def folder() -> Path:
    """Where the services' file, logs, passwords and Prefect's database are."""
    return cache_folder() / "services"


def running() -> dict[str, Service]:
    """Services of `up` that run, by name."""
    return {name: one for name, one in _recorded().items() if one.alive}


def _recorded() -> dict[str, Service]:
    try:
        values = json.loads((folder() / "services.json").read_text())
        return {one["name"]: Service(**one) for one in values}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _record(services: Iterable[Service]) -> None:
    write_whole(folder() / "services.json", json.dumps([asdict(one) for one in services], indent=1))


def running_api() -> str | None:
    """URL of the Prefect API that `up` started, or None."""
    server = running().get("server")
    return server.url if server else None


def start(
    name: str,
    command: list[str],
    url: str = "",
    listener: socket.socket | None = None,
    **environment: str,
) -> Service:
    """Start a service unless it runs; its output goes to a log file beside the services' file.

    What the one before it wrote is kept as `NAME.before.log`.

    Args:
        name: of the service.
        command: its command line.
        url: where it listens.
        listener: socket that it inherits.
        environment: added to this process's.

    """
    known = running()
    if name in known:
        return known[name]
    private_folder(folder())
    with contextlib.suppress(FileNotFoundError):
        log_of(name).replace(log_of(f"{name}.before"))
    with close_file(log_of(name)).open("ab") as log, _ctrl_c_later():
        process = processes.start(
            command,
            log,
            os.environ | environment,
            folder=folder(),
            pass_fds=[listener.fileno()] if listener else [],
        )
        born = processes.born(process.pid)
        if born is None:
            raise AutolabelError(f"{name} ended at once: see {log_of(name)}")
        service = Service(name, process.pid, born, url)
        _record([*known.values(), service])
    return service


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: what was started is then recorded, too."""
    came: list[int] = []
    with handling(lambda number, _: came.append(number), signal.SIGINT):
        yield
    for number in came[:1]:
        signal.raise_signal(number)


def log_of(name: str) -> Path:
    """Log file of a service."""
    return folder() / f"{name}.log"


def wait_until(service: Service, ready: Callable[[], object]) -> None:
    """Wait until a service is ready.

    Raises:
        AutolabelError: it ended, all its workers are refused, or it takes too long.

    """
    deadline = time.monotonic() + START_S
    while not ready():
        refused = _refused(service)
        if refused:
            raise AutolabelError(
                f"{NONE_WORKS}{refused}. What was started goes on, and what failed is tested "
                "again and again; `autolabel down` ends it all"
            )
        if not service.alive or time.monotonic() > deadline:
            words = last_words(log_of(service.name).read_text(errors="replace"))
            raise AutolabelError(
                f"{service.name} did not start: {words or 'it said nothing'}; its log is "
                f"{log_of(service.name)}"
            )
        time.sleep(POLL_S)


def _refused(service: Service) -> str:
    """Return why none of a service's workers takes work, "" where that is not so."""
    log = log_of(service.name)
    if not service.name.startswith("worker-") or not log.is_file():
        return ""
    _, found, reasons = log.read_text(errors="replace").rpartition(NONE_WORKS)
    return reasons.splitlines()[0] if found and reasons and WELL_AGAIN not in reasons else ""


def stop_all() -> list[str]:
    """Stop every service of `up`, last what others need to end; returns names of those that ran.

    Workers give their shards back to the server, also to one that was started after them.
    """
    stopped = []
    for service in sorted(_recorded().values(), key=_needed_to_end):
        if service.alive:
            _stop(service)
            stopped.append(service.name)
    for file in ("services.json", LINKS):
        (folder() / file).unlink(missing_ok=True)
    return stopped


def _needed_to_end(service: Service) -> int:
    """Rank a service: 0 if no other needs it to end, else by how long they do."""
    return NEEDED_TO_END.index(service.name) + 1 if service.name in NEEDED_TO_END else 0


def _stop(service: Service) -> None:
    if not processes.stop(service.pid, lambda: service.alive, STOP_S):
        raise AutolabelError(
            f"{service.name} (process {service.pid}) does not stop; end it by hand"
        )


def python(*arguments: str) -> list[str]:
    """Command line of a Python module of this environment."""
    return [sys.executable, "-m", *arguments]
