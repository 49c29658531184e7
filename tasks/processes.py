"""Processes of this product: how they are found again, and ended.

A process outlives the command that started it, or is ended by another one. By then its id may be
that of something else: who ends a process says how to recognise it.
"""

import atexit
import contextlib
import contextvars
import gc
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sam2_core.types import AutolabelError

POLL_S = 0.02
# Process id of a flow run's worker; workers that somebody else started have none.
WORKER_VARIABLE = "AUTOLABEL_WORKER"
REPEATED_WITHIN_S = 10.0
# Where it is "1", no Python finds a module in the folder that it works in: that is a stranger's.
SAFE_PATH = "PYTHONSAFEPATH"


def python(*arguments: str) -> list[str]:
    """Command line of a Python module of this environment, which `SAFE_PATH` says more of.

    Nothing else here starts Python by itself; libraries that do inherit the variable.
    """
    return [sys.executable, "-P", "-m", *arguments]


def run(
    command: Sequence[str], within_s: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, apart from the terminal; returns what it said.

    Args:
        command: its command line.
        within_s: how long it may take.
        options: as `subprocess.run` takes them.

    Raises:
        AutolabelError: it takes longer, and was killed.

    """
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False, start_new_session=True, timeout=within_s,
            **options,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise AutolabelError(
            f"`{shlex.join(command)}` did not end within {within_s:g} s, and was killed: its disk "
            "hangs, or what it waits for was stopped"
        ) from error


def collect_seldom() -> None:
    """Spare this process most of Python's search for garbage, which finds none in what it imports.

    It takes a fifth of an import of Prefect or FiftyOne, and a second when a process ends.
    """
    gc.set_threshold(50_000, 20, 100)
    atexit.register(gc.freeze)  # before anything else is registered, so after all of it is done


def command_line(pid: int) -> list[str]:
    """Return the words of a running process of this user; none where there is no such process."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE:
            return process.cmdline()
    return []


def stop(pid: int, alive: Callable[[], bool], patience_s: float, *, group: bool = False) -> bool:
    """Ask a process to end, wait, and kill it if it does not; returns whether it has ended.

    Args:
        pid: process id.
        alive: whether that very process runs; nothing is sent once it does not.
        patience_s: how long to wait after each signal.
        group: whether to send them to all of its process group.

    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not alive():
            break
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(pid, number)
        deadline = time.monotonic() + patience_s
        while alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of this process leaves its exit status for us
    return not alive()


def end(process: subprocess.Popen[bytes], patience_s: float, *, group: bool = False) -> None:
    """As `stop`, of a child of this process."""
    stop(process.pid, lambda: process.poll() is None, patience_s, group=group)


@contextlib.contextmanager
def handling(
    handler: Callable[[int, Any], object] | int | None, *numbers: signal.Signals
) -> Iterator[None]:
    """Let a function handle signals while the block runs.

    Signals are the main thread's; in another one, their owner handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def answers(url: str) -> bool:
    """Whether a server answers there, if only to say who may come in."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        return error.code in {401, 403}
    except (OSError, ValueError):
        return False


def end_with_parent() -> None:
    """End this process when its standard input closes: with its parent, even one that was killed.

    Not through sys.stdin: its lock, held by a thread that waits, turns the end of a server that
    fails into a fatal error of the interpreter, and that is all its log then ends with.
    """
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def repeating(call: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call a function every few seconds, in a thread with this one's context, in the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            call()

    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(repeat,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(REPEATED_WITHIN_S)
