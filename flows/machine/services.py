"""Supervisors of this machine: programs of one supervisord, in a list, which is its configuration.

`up` adds programs to the list, supervisord keeps each of them running, pauses longer before each
start of one that fails, and turns its log over; `down` ends them in order. supervisord listens on a
Unix socket of this user alone. Each program ends with it, even with one that was killed, so that
the next `up` never meets programs of an earlier one. `autolabel worker` has a supervisord of its
own, which ends with the command.
"""

import configparser
import contextlib
import os
import shlex
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xmlrpc.client import Error, Fault, ServerProxy

from flows.machine.launched import TIED
from flows.machine.programs import NUMBER, TAKES_NO_WORK, Program, python
from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.processes import command_line
from tasks.store.private_files import (
    PRIVATE_UMASK,
    OwnFolder,
    close_file,
    private_folder,
    write_private,
)
from tasks.store.shared_server import socket_folder

START_S, STOP_S = 180.0, 150.0
SUPERVISOR_S = 30.0
POLL_S = 0.1
LINES, LONGEST = 4, 600
LIVES = {"STARTING", "RUNNING", "STOPPING", "BACKOFF"}
LINKS = "sign-in.html"  # what `up` has printed
# Of a program that listens on a port, process 1 does nothing: while it runs supervisord holds the
# port, also when process 0, the program, is started again. Workers would send a password to whoever
# else got it.
HOLD_PORT = 'test "$0" = 1 && PATH=/usr/bin:/bin exec sleep infinity; exec "$@"'
SUPERVISOR = "supervisor.supervisord"
ADVICE = (
    "what failed is tested again and again, and a worker that is well takes work by itself: make "
    "room where a disk is full, see `nvidia-smi -L` for GPUs. Where CUDA_VISIBLE_DEVICES or the "
    "software is what is wrong, mend it, then stop the workers and start them again: `autolabel "
    "down`, then `autolabel up`, which alone leaves them as they run"
)
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
    """A program on the list of `up`, by the first of its processes.

    Attributes:
        name: server, database, app, worker-gpu, worker-cpu.
        pid: process id; 0 while none runs.
        log: what it writes; each of several processes has its own.
        url: where it listens, "" when nowhere.
        count: how many processes it has.

    """

    name: str
    pid: int
    log: Path
    url: str
    count: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return self.pid != 0 and running().get(self.name) == self


def folder() -> Path:
    """Where the list of `up`, its logs and passwords are."""
    return cache_folder() / "services"


def running() -> dict[str, Service]:
    """Services of `up` that run or are about to, by name."""
    found, listed = {}, _ask("getAllProcessInfo", [])
    counts = Counter(one["group"] for one in listed)
    for one in listed:
        name = one["group"]
        if one["statename"] in LIVES and one["name"] == f"{name}_0":
            log, url = Path(one["stdout_logfile"]), _url_of(name)
            found[name] = Service(name, one["pid"], log, url, counts[name])
    return found


def running_api() -> str | None:
    """URL of the Prefect API that `up` started, or None."""
    server = running().get("server")
    return server.url if server else None


def start(program: Program) -> Service:
    """Put a program on the list of `up` and start it, unless it runs; output goes to its log."""
    if program.name not in running():
        if not _ask("getPID", 0):
            _supervise()
        log = program.name if program.count == 1 else f"{program.name}_{NUMBER}"
        to = f"{_escaped(str(folder()))}/{log}.log"
        section = _section(program, folder(), to, most="10MB")
        write_private(_list_of(folder()) / f"{program.name}.conf", section)
        supervisor = _rpc()
        supervisor.reloadConfig()
        with contextlib.suppress(Fault):  # it is on the list where it has run before
            supervisor.removeProcessGroup(program.name)
        supervisor.addProcessGroup(program.name)
        with contextlib.suppress(Fault):  # it has started by itself, or says in its log why not
            supervisor.startProcessGroup(program.name, False)
    return running()[program.name]


def wait_until(service: Service, ready: Callable[[], object]) -> None:
    """Wait until a service is ready; stops one that fails.

    Raises:
        AutolabelError: it ended, all its workers are refused, or it takes too long.

    """
    deadline = time.monotonic() + START_S
    _, of_workers, pool = service.name.partition("worker-")
    names = f"{socket.gethostname()}-{pool}-"
    while not ready():
        refused = [why for name, why in refused_workers().items() if name.startswith(names)]
        if len(refused) >= service.count:
            raise AutolabelError(
                f"no worker takes work: {'; '.join(sorted(set(refused)))}. What was started goes "
                "on, and what failed is tested again and again; `autolabel down` ends it all"
            )
        if not (service.alive or of_workers) or time.monotonic() > deadline:
            words = last_words(service.log) or "it said nothing"
            stop(service.name)
            raise AutolabelError(f"{service.name} did not start: {words}; its log is {service.log}")
        time.sleep(POLL_S)


def last_words(log: Path) -> str:
    """Return how a log ends; "" if it is empty.

    A server's last line is often only that it stops ("Application startup failed. Exiting.").
    """
    return " ".join(_lines_of(log)[-LINES:])[-LONGEST:]


def _lines_of(log: Path) -> list[str]:
    text = log.read_text(errors="replace") if log.is_file() else ""
    return [line.strip() for line in text.splitlines() if line.strip()]


def refused_workers() -> dict[str, str]:
    """Return why workers of `up` take no work, by their names: each says so when it ends.

    What one of an earlier supervisor has said is still in its log.
    """
    found = {}
    for one in _ask("getAllProcessInfo", []):
        last = "".join(_lines_of(Path(one["stdout_logfile"]))[-1:])
        name, refuses, why = last.partition(TAKES_NO_WORK)
        if refuses and one["stop"]:
            found[name] = why
    return found


def stop(name: str) -> None:
    """Stop a service of `up`; nothing where it is not on the list."""
    with contextlib.suppress(OSError, Error):
        _rpc().stopProcessGroup(name)


def stop_all(tell: Callable[[Sequence[str]], object] = lambda _: None) -> list[str]:
    """Stop every service of `up`, last what others need to end; returns names of those that ran.

    Args:
        tell: hears which services are waited for.

    """
    known = sorted(running())
    if pid := _ask("getPID", 0):
        tell(known)
        _rpc().shutdown()
        while command_line(pid):  # it kills what does not end within STOP_S
            time.sleep(POLL_S)
    _forget()
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
    section = _section(program, own.path, "/dev/fd/2", most="0")
    write_private(_list_of(own.path) / f"{program.name}.conf", section)
    command = _supervisor(own.path)
    os.execv(command[0], command)  # noqa: S606 - ours


def _list_of(at: Path) -> Path:
    return private_folder(private_folder(at) / "programs")


def _forget() -> None:
    for file in [*folder().glob("programs/*.conf"), folder() / LINKS]:
        file.unlink(missing_ok=True)


def _rpc() -> Any:
    from supervisor.xmlrpc import SupervisorTransport

    transport = SupervisorTransport(serverurl=f"unix://{_socket(folder())}")
    return ServerProxy("http://127.0.0.1", transport=transport).supervisor


def _socket(at: Path) -> Path:
    return socket_folder(at, "supervisor.sock.00000") / "supervisor.sock"


def _ask(question: str, otherwise: Any) -> Any:
    """Ask the supervisor of `up`; returns `otherwise` where none answers."""
    with contextlib.suppress(OSError, Error):
        return getattr(_rpc(), question)() if folder().is_dir() else otherwise
    return otherwise


def _url_of(name: str) -> str:
    parsed = configparser.RawConfigParser()
    parsed.read(_list_of(folder()) / f"{name}.conf")
    return parsed.get("autolabel", "url", fallback="")


def _supervisor(at: Path) -> list[str]:
    """Write the configuration of a supervisor; returns its command line."""
    file = at / "supervisor.conf"
    write_private(file, _SUPERVISOR.format(folder=_escaped(str(at)), socket=_socket(at)))
    return python(SUPERVISOR, "-c", str(file))


def _supervise() -> None:
    """Start the supervisor of `up` with an empty list."""
    at = folder()
    _list_of(at)
    _forget()
    log = close_file(at / "supervisor.start.log")
    with log.open("wb") as opened:
        started = subprocess.Popen(
            _supervisor(at), stdin=subprocess.DEVNULL, stdout=opened, stderr=opened, cwd=at,
            umask=PRIVATE_UMASK, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + SUPERVISOR_S
    while not _ask("getPID", 0):
        if started.poll() is not None or time.monotonic() > deadline:
            said = last_words(log)
            raise AutolabelError(f"supervisord did not start: {said or 'it said nothing'}")
        time.sleep(POLL_S)


def _section(program: Program, at: Path, log: str, most: str) -> str:
    """Tell a supervisor of a program; at most so much of what it writes goes to one log."""
    kind, count, holding, more = "program", program.count, list[str](), ""
    if program.port:
        kind, count, holding = "fcgi-program", 2, ["/bin/sh", "-c", HOLD_PORT, NUMBER]
        more = f"socket=tcp://127.0.0.1:{program.port}\n"
    words = [*TIED, *holding, *program.command]
    command = " ".join(one if one == NUMBER else _escaped(shlex.quote(one)) for one in words)
    values = ",".join(f'{key}="{_escaped(value)}"' for key, value in program.environment.items())
    url = f"http://127.0.0.1:{program.port}{program.path}" if program.port else ""
    return (
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


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
