"""What a workstation needs: programs of one supervisord, in a list, which is its configuration.

`up` adds programs to the list, supervisord keeps each of them running, pauses longer before each
start of one that fails, and turns its log over; `down` ends them in order. supervisord listens on a
Unix socket of this user alone. Each program ends with it, even with one that was killed, so that
the next `up` never meets programs of an earlier one.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xmlrpc.client import Error, ServerProxy

from flows.machine.logs import last_words
from flows.machine.notes import none_works
from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.store.private_files import PRIVATE_UMASK, close_file, private_folder, write_private
from tasks.store.shared_server import socket_folder

START_S, STOP_S = 180.0, 150.0
SUPERVISOR_S = 30.0
POLL_S = 0.2
# What others need to end is started first and stopped last.
ORDER = {"server": 1, "database": 2}
LIVES = {"STARTING", "RUNNING", "STOPPING"}
LINKS = "sign-in.html"  # what `up` has printed
HOLDER = "_1"  # ends the name of the process that only holds a port, see `launched`
_SUPERVISOR = """[supervisord]
nodaemon=true
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
    """A program that `up` has put on the list.

    Attributes:
        name: server, database, app, worker-gpu, worker-cpu.
        pid: process id; 0 while none runs.
        url: where it listens, "" when nowhere.

    """

    name: str
    pid: int
    url: str = ""

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return self.pid != 0 and running().get(self.name) == self


def folder() -> Path:
    """Where the list, logs and passwords are."""
    return cache_folder() / "services"


def running() -> dict[str, Service]:
    """Services of `up` that run or are about to, by name."""
    found = {}
    for one in _told():
        if one["statename"] in {*LIVES, "BACKOFF"} and not one["name"].endswith(HOLDER):
            name = one["group"]
            found[name] = Service(name, one["pid"], _url_of(name))
    return found


def running_api() -> str | None:
    """URL of the Prefect API that `up` started, or None."""
    server = running().get("server")
    return server.url if server else None


def start(
    name: str, command: list[str], port: int = 0, path: str = "", **environment: str
) -> Service:
    """Put a program on the list and start it, unless it runs; its output goes to `log_of(name)`.

    What the one before it wrote is kept as `NAME.before.log`.

    Args:
        name: of the service.
        command: its command line.
        port: of 127.0.0.1 that it gets as its standard input, listening: nobody else has that port
            while it is started again. None when 0.
        path: behind the port in its address.
        environment: added to the supervisor's.

    """
    known = running()
    if name in known:
        return known[name]
    _supervise()
    with contextlib.suppress(FileNotFoundError):
        log_of(name).replace(log_of(f"{name}.before"))
    write_private(_programs() / f"{name}.conf", _section(name, command, port, path, environment))
    _update()
    return wait_for_pid(name)


def wait_for_pid(name: str) -> Service:
    """Return a service once it has a process, or has failed to get one."""
    deadline = time.monotonic() + SUPERVISOR_S
    while True:
        found = running().get(name)
        if found and (found.pid or time.monotonic() > deadline):
            return found
        if time.monotonic() > deadline:
            raise AutolabelError(f"{name} ended at once: see {log_of(name)}")
        time.sleep(POLL_S)


def log_of(name: str) -> Path:
    """Log file of a service."""
    return folder() / f"{name}.log"


def wait_until(service: Service, ready: Callable[[], object]) -> None:
    """Wait until a service is ready; takes one that fails off the list again.

    Raises:
        AutolabelError: it ended, all its workers are refused, or it takes too long.

    """
    deadline = time.monotonic() + START_S
    while not ready():
        if refused := none_works(service.name.removeprefix("worker-")):
            raise AutolabelError(
                f"no worker takes work: {refused}. What was started goes on, and what failed is "
                "tested again and again; `autolabel down` ends it all"
            )
        if not service.alive or time.monotonic() > deadline:
            log = log_of(service.name)
            words = last_words(log)
            stop(service.name)
            raise AutolabelError(
                f"{service.name} did not start: {words or 'it said nothing'}; its log is {log}"
            )
        time.sleep(POLL_S)


def stop(name: str) -> None:
    """Stop a service and take it off the list; nothing where it is not on it."""
    (_programs() / f"{name}.conf").unlink(missing_ok=True)
    with contextlib.suppress(OSError, Error):
        _update()


def stop_all() -> list[str]:
    """Stop every service of `up`, last what others need to end; returns names of those that ran."""
    names = sorted(running(), key=lambda name: -ORDER.get(name, 9))
    with contextlib.suppress(OSError, Error):
        pid: int = _rpc().getPID()
        _rpc().shutdown()
        deadline = time.monotonic() + (1 + len(names)) * STOP_S
        while processes.born(pid) is not None:
            if time.monotonic() > deadline:
                raise AutolabelError(f"supervisord (process {pid}) does not stop; end it by hand")
            time.sleep(processes.POLL_S)
    _forget()
    return names


def python(*arguments: str) -> list[str]:
    """Command line of a Python module of this environment."""
    return [sys.executable, "-m", *arguments]


def _programs() -> Path:
    return private_folder(private_folder(folder()) / "programs")


def _forget() -> None:
    for file in [*folder().glob("programs/*.conf"), folder() / LINKS]:
        file.unlink(missing_ok=True)


def _socket() -> Path:
    return socket_folder(folder(), "supervisor.sock.00000") / "supervisor.sock"


def _rpc() -> Any:
    from supervisor.xmlrpc import SupervisorTransport

    transport = SupervisorTransport(serverurl=f"unix://{_socket()}")
    return ServerProxy("http://127.0.0.1", transport=transport).supervisor


def _told() -> list[dict[str, Any]]:
    """Return what supervisord says of each program; nothing where none runs."""
    if not folder().is_dir():
        return []
    with contextlib.suppress(OSError, Error):
        found: list[dict[str, Any]] = _rpc().getAllProcessInfo()
        return found
    return []


def _url_of(name: str) -> str:
    parsed = configparser.RawConfigParser()
    parsed.read(_programs() / f"{name}.conf")
    return parsed.get("autolabel", "url", fallback="")


def _supervise() -> None:
    """Start the supervisor, with an empty list, unless it runs."""
    private_folder(folder())
    with contextlib.suppress(OSError, Error):
        _rpc().getPID()
        return
    _forget()
    _programs()
    file = folder() / "supervisor.conf"
    write_private(file, _SUPERVISOR.format(folder=_escaped(str(folder())), socket=_socket()))
    with close_file(log_of("supervisor.start")).open("wb") as log:
        command = python("supervisor.supervisord", "-c", str(file))
        started = processes.start(command, log, os.environ, folder=folder(), umask=PRIVATE_UMASK)
    deadline = time.monotonic() + SUPERVISOR_S
    while True:
        with contextlib.suppress(OSError, Error):
            _rpc().getPID()
            return
        if started.poll() is not None or time.monotonic() > deadline:
            said = last_words(log_of("supervisor.start"))
            raise AutolabelError(f"supervisord did not start: {said or 'it said nothing'}")
        time.sleep(processes.POLL_S)


def _update() -> None:
    """Let supervisord read the list again: start what is new on it, stop what is gone."""
    supervisor = _rpc()
    ((added, _, removed),) = supervisor.reloadConfig()
    for name in removed:
        supervisor.stopProcessGroup(name)
        supervisor.removeProcessGroup(name)
    for name in added:
        supervisor.addProcessGroup(name)


def _section(
    name: str, command: list[str], port: int, path: str, environment: dict[str, str]
) -> str:
    kind = "fcgi-program" if port else "program"
    number = "%(process_num)d" if port else "0"
    launcher = shlex.join([*python("flows.machine.launched"), number, str(_rpc().getPID())])
    launched = f"{launcher} {_escaped(shlex.join(command))}"
    more = f"socket=tcp://127.0.0.1:{port}\nnumprocs=2\n" if port else ""
    more += "process_name=%(program_name)s_%(process_num)d\n"
    values = ",".join(f'{key}="{_escaped(value)}"' for key, value in environment.items())
    return (
        f"[{kind}:{name}]\n{more}"
        f"command={launched}\n"
        f"environment={values}\n"
        f"directory={_escaped(str(folder()))}\n"
        f"priority={ORDER.get(name, 9)}\n"
        "autorestart=true\nstartsecs=20\nstartretries=100000\n"
        f"stopwaitsecs={STOP_S:.0f}\nredirect_stderr=true\n"
        f"stdout_logfile={_escaped(str(log_of(name)))}\n"
        "stdout_logfile_maxbytes=10MB\nstdout_logfile_backups=1\n"
        f"[autolabel]\nurl={f'http://127.0.0.1:{port}{path}' if port else ''}\n"
    )


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
