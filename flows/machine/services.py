"""Supervisors of this machine: programs of one supervisord, in a list, which is its configuration.

`up` adds programs to the list, supervisord keeps each of them running, pauses longer before each
start of one that fails, and turns its log over; `down` ends them in order. supervisord listens on a
Unix socket of this user alone. Each program ends with it, even with one that was killed, so that
the next `up` never meets programs of an earlier one. `autolabel worker` has a supervisord of its
own, which ends with the command.
"""

import contextlib
import os
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from xmlrpc.client import Error, ServerProxy, Transport

from flows.machine.programs import NUMBER, TAKES_NO_WORK, TIED, Program
from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.processes import command_line, python, run
from tasks.store.private_files import (
    PRIVATE_UMASK,
    OwnFolder,
    private_folder,
    write_private,
)
from tasks.store.shared_server import socket_folder

START_S, STOP_S = 180.0, 150.0
ANSWER_S = 10.0  # of a supervisor, which does nothing but answer
POLL_S = 0.1
LINES, LONGEST = 4, 2000
LINKS = "sign-in.html"  # what `up` has printed
# Of a program that listens on a port, process 1 does nothing: while it runs supervisord holds the
# port, also when process 0, the program, is started again. Workers would send a password to another
# program that got it.
HOLD_PORT = 'test "$0" = 1 && PATH=/usr/bin:/bin exec sleep infinity; exec "$@"'
ADVICE = (
    "what failed is tested again and again, and a worker that is well takes work by itself: make "
    "room where a disk is full, see `nvidia-smi -L` for GPUs. Where CUDA_VISIBLE_DEVICES or the "
    "software is what is wrong, mend it, then stop the workers and start them again: `autolabel "
    "down`, then `autolabel up`, which alone leaves them as they run"
)
_SUPERVISOR = """[supervisord]
silent=true
logfile={folder}/supervisor.log
logfile_maxbytes=1MB
logfile_backups=1
pidfile={folder}/supervisor.pid
umask=077
minfds=256
nocleanup=true
[unix_http_server]
file={socket}
chmod=0600
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[include]
files=programs/*.conf
"""


@dataclass(frozen=True)
class Service:
    """A program that `up` has its supervisor run.

    Attributes:
        name: server, database, app, worker-gpu, worker-cpu.
        pid: of the first of its processes; 0 while that does not run.
        url: where it listens, "" when nowhere.
        count: how many processes it has.

    """

    name: str
    pid: int
    url: str
    count: int


def folder() -> Path:
    """Where the list of `up`, its logs and passwords are."""
    return cache_folder() / "services"


def running() -> dict[str, Service]:
    """Services of `up` by name; the supervisor starts again what ends."""
    found: dict[str, Service] = {}
    for process in _processes():
        name, url = process["group"], _url_of(process["group"])
        first = found.get(name) or Service(name, process["pid"], url, 0)
        found[name] = replace(first, count=1 if url else first.count + 1)
    return found


def has_died() -> bool:
    """Whether what `up` has started ended without `down`: killed, or with the machine."""
    return (folder() / LINKS).exists() and not _ask("getPID")


def running_api() -> str | None:
    """URL of the Prefect API that `up` started, or None."""
    server = running().get("server")
    return server.url if server else None


def start(program: Program) -> Service:
    """Have the supervisor run a program, unless it does; output goes to a log."""
    if program.name not in running():
        at, runs = folder(), _ask("getPID")
        for old in () if runs else at.glob("programs/*.conf"):
            old.unlink()
        log = program.name if program.count == 1 else f"{program.name}_{NUMBER}"
        _put_on_list(program, at, f"{_escaped(str(at))}/{log}.log", most="10MB")
        if runs:
            _told("reloadConfig")
            _told("addProcessGroup", program.name)
        else:  # it comes back when it listens, and runs on
            started = run(_supervisor(at), START_S, umask=PRIVATE_UMASK)
            if started.returncode:
                said = started.stdout.strip().splitlines() or ["it said nothing"]
                raise AutolabelError(f"supervisord did not start: {said[-1]}")
    return running()[program.name]


def wait_until(service: Service, ready: Callable[[], object]) -> None:
    """Wait until a service is ready.

    Raises:
        AutolabelError: all its processes have ended before they were, or it takes too long.

    """
    deadline = time.monotonic() + START_S
    lines = 1 if service.name.startswith("worker-") else LINES
    while not ready():
        all_of_it = [process for process in _processes() if process["group"] == service.name]
        ended = [
            process
            for process in all_of_it
            if process["stop"] and process["statename"] != "RUNNING"
        ]
        if len(ended) >= min(service.count, len(all_of_it)) or time.monotonic() > deadline:
            logs = [Path(process["stdout_logfile"]) for process in ended or all_of_it]
            said = {last_words(log, lines) or "it said nothing": str(log) for log in logs}
            raise AutolabelError(
                f"{service.name} did not start: {'; '.join(said)}; its log is "
                f"{', '.join(said.values())}. What was started goes on, and what failed is tried "
                "again and again; `autolabel down` ends it all"
            )
        time.sleep(POLL_S)


def last_words(log: Path, lines: int = LINES) -> str:
    """Return how a log ends; "" if it is empty.

    A server's last line is often only that it stops ("Application startup failed. Exiting.").
    """
    text = log.read_text(errors="replace") if log.is_file() else ""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(said[-lines:])[-LONGEST:]


def refused_workers() -> dict[str, str]:
    """Return why workers of `up` take no work, by their names: each says so when it ends.

    What one of an earlier supervisor has said is still in its log.
    """
    found = {}
    for process in _processes():
        last = last_words(Path(process["stdout_logfile"]), 1)
        name, refuses, why = last.partition(TAKES_NO_WORK)
        if refuses and process["stop"]:
            found[name] = why
    return found


def stop_all(tell: Callable[[Sequence[str]], object] = lambda _: None) -> list[str]:
    """Stop every service of `up`, last what others need to end; returns names of those that ran.

    Args:
        tell: hears which services are waited for.

    """
    known = sorted(running())
    if pid := _ask("getPID"):
        tell(known)
        _told("shutdown")
        # It kills what does not end within STOP_S, one order of programs after the other.
        deadline = time.monotonic() + 4 * STOP_S
        while command_line(pid):
            if time.monotonic() > deadline:
                raise _frozen()
            time.sleep(POLL_S)
    (folder() / LINKS).unlink(missing_ok=True)
    return known


def in_foreground(program: Program) -> None:
    """Become the supervisor of a program, until SIGTERM or Ctrl-C; it shows what that writes.

    Raises:
        AutolabelError: `up` runs it.

    """
    if program.name in running():
        raise AutolabelError(
            f"`autolabel up` runs {program.name} on this machine already; `autolabel down` stops it"
        )
    own = OwnFolder("autolabel-workers-")  # swept when the supervisor, which locks it, has ended
    os.set_inheritable(own.lock.fileno(), True)
    _put_on_list(program, own.path, "/dev/fd/2", most="0")
    command = [*_supervisor(own.path), "--nodaemon"]
    os.execv(command[0], command)  # noqa: S606 - ours


class _ToSocket(Transport):
    """Connects to the supervisor's socket, and waits no longer than `ANSWER_S` for an answer."""

    def make_connection(self, host: Any) -> HTTPConnection:
        connection = HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(ANSWER_S)
        connection.sock.connect(str(_socket(folder())))
        return connection


def _told(command: str, *values: str) -> Any:
    """Tell the supervisor of `up` something; returns its answer.

    Raises:
        AutolabelError: it is there and does not answer.
        OSError, Error: none is there, or it refuses.

    """
    try:
        supervisor = ServerProxy("http://127.0.0.1", transport=_ToSocket()).supervisor
        return getattr(supervisor, command)(*values)
    except (TimeoutError, BlockingIOError) as error:  # the latter: its queue is full
        raise _frozen() from error


def _frozen() -> AutolabelError:
    pid = (folder() / "supervisor.pid").read_text().strip()
    return AutolabelError(
        f"the supervisor of `autolabel up` (process {pid}) does not answer: it was stopped or "
        f"hangs. `kill -CONT {pid}` lets it go on; `kill -KILL {pid}` ends it and all that it "
        "runs, and `autolabel up` begins again (shards go back to the queue)"
    )


def _socket(at: Path) -> Path:
    return socket_folder(at, "supervisor.sock.00000") / "supervisor.sock"


def _ask(question: str) -> Any:
    """Ask the supervisor of `up`; None where none answers."""
    with contextlib.suppress(OSError, Error):
        return _told(question) if folder().is_dir() else None
    return None


def _processes() -> list[dict[str, Any]]:
    return _ask("getAllProcessInfo") or []


def _url_of(name: str) -> str:
    return (folder() / "programs" / f"{name}.conf").read_text().rpartition("url=")[2].strip()


def _supervisor(at: Path) -> list[str]:
    """Write the configuration of a supervisor; returns its command line."""
    file = at / "supervisor.conf"
    write_private(file, _SUPERVISOR.format(folder=_escaped(str(at)), socket=_socket(at)))
    return python("supervisor.supervisord", "-c", str(file))


def _put_on_list(program: Program, at: Path, log: str, most: str) -> None:
    """Write what a supervisor has to know of a program; one log gets at most so much of it."""
    kind, count, holding, more = "program", program.count, list[str](), ""
    if program.port:
        kind, count, holding = "fcgi-program", 2, ["/bin/sh", "-c", HOLD_PORT, NUMBER]
        more = f"socket=tcp://127.0.0.1:{program.port}\n"
    words = [*TIED, *holding, *program.command]
    command = " ".join(word if word == NUMBER else _escaped(shlex.quote(word)) for word in words)
    values = ",".join(
        f'{key}="{value if value == NUMBER else _escaped(value)}"'
        for key, value in program.environment.items()
    )
    url = f"http://127.0.0.1:{program.port}{program.path}" if program.port else ""
    section = (
        f"[{kind}:{program.name}]\n{more}"
        f"numprocs={count}\n"
        f"process_name=%(program_name)s_{NUMBER}\n"
        f"command={command}\n"
        f"environment={values}\n"
        f"directory={_escaped(str(at))}\n"
        f"priority={program.order}\n"
        "autorestart=true\nstartsecs=20\nstartretries=100000\n"
        f"stopwaitsecs={STOP_S:.0f}\nredirect_stderr=true\n"
        f"stdout_logfile={log}\n"
        f"stdout_logfile_maxbytes={most}\nstdout_logfile_backups=1\n"
        f"[autolabel]\nurl={url}\n"
    )
    write_private(private_folder(private_folder(at) / "programs") / f"{program.name}.conf", section)


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
