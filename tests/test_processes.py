"""Processes that we start end when told to, are killed when they do not, and are never mistaken."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tasks import processes

DEAF = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork() if "fork" in sys.argv else 1
os.write(1, b"ready %d\\n" % os.getpid())
signal.pause()
"""


def started(tmp_path, *arguments, source=DEAF):
    """Start a Python process and wait for its first line."""
    read, write = os.pipe()
    with os.fdopen(read) as lines, os.fdopen(write, "wb") as log:
        command = [sys.executable, "-c", source, *arguments]
        process = subprocess.Popen(command, stdout=log, cwd=tmp_path, start_new_session=True)
        pids = {int(lines.readline().split()[1]) for _ in ("self", *arguments)}
    return process, pids


def test_a_process_that_ignores_sigterm_is_killed(tmp_path):
    process, _ = started(tmp_path)
    processes.end(process, 0.1)
    assert process.poll() == -signal.SIGKILL


def test_a_process_that_listens_is_not_killed(tmp_path):
    polite = DEAF.replace("signal.SIG_IGN", "lambda *_: sys.exit(7)")
    process, _ = started(tmp_path, source=polite)
    processes.end(process, 60)
    assert process.poll() == 7


def test_all_of_a_group_end(tmp_path):
    process, pids = started(tmp_path, "fork")
    assert len(pids) == 2
    processes.end(process, 0.1, group=True)
    (child,) = pids - {process.pid}
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        pass


def test_what_is_not_the_process_any_more_gets_no_signal(tmp_path):
    process, _ = started(tmp_path, source=DEAF.replace("SIG_IGN", "SIG_DFL"))
    assert processes.stop(process.pid, lambda: False, 0)
    assert process.poll() is None
    processes.end(process, 60)
    assert process.poll() == -signal.SIGTERM


@pytest.mark.parametrize("pid", [2**22 + 1, 1])
def test_the_words_of_another_users_process_or_of_none_are_not_shown(pid, monkeypatch):
    assert processes.command_line(os.getpid())
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert processes.command_line(pid) == []


def test_a_child_that_nobody_waited_for_does_not_count_as_running():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert processes.command_line(process.pid) == []
    process.wait()
