"""SIGTERM and SIGHUP end `autolabel review` in order; tools/first_hour.py does so to the App."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

CHILD = """
import atexit, contextlib, time
from flows.cli.review import _ended_by_signals

@contextlib.contextmanager
def app():
    try:
        yield
    finally:
        print("app stopped", flush=True)

@_ended_by_signals()
def review():
    with app():
        print("up", flush=True)
        while True:
            time.sleep(0.5)

atexit.register(lambda: print("database released", flush=True))
review()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_started_is_stopped(number):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert process.communicate()[0] == "app stopped\ndatabase released\n"
    assert process.returncode == 128 + number
