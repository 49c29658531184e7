"""How `autolabel review` begins and ends; tools/first_hour.py does so to the App."""

import html
import signal
import stat
import subprocess
import sys

import pytest

from flows.cli.review import _way_in
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


def test_a_log_has_no_address_that_signs_in(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    url = "http://127.0.0.1:1/datasets/x?view=needs-review&token=secret"
    file = tmp_path / "services" / "review-1.html"
    told = _way_in(url, 1)
    assert str(file) in told
    assert "secret" not in told
    assert html.escape(url) in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert url in _way_in(url, 1)
