"""How `autolabel review` begins and ends; tools/first_hour.py does so to the App."""

import contextlib
import html
import signal
import socket
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from flows.cli.review import _serve, _use_own_server, _way_in
from flows.machine import services
from flows.server import api
from sam2_core.types import AutolabelError
from tests.conftest import REPOSITORY

CHILD = """
import atexit, contextlib, time
from flows.cli.review import _ended_by_signals, _told

@contextlib.contextmanager
def app():
    try:
        yield
    finally:
        print("app stopped", flush=True)

@_ended_by_signals()
def review():
    with app(), _told():
        print("up", flush=True)
        while True:
            time.sleep(0.5)

atexit.register(lambda: print("database released", flush=True))
review()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_started_is_stopped(number):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert process.communicate() == ("app stopped\ndatabase released\n", "stopping\n")
    assert process.returncode == 128 + number


def test_a_log_has_no_address_that_signs_in(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    url = "http://127.0.0.1:1/datasets/x?view=needs-review&token=secret"
    file = tmp_path / "services" / "review-1.html"
    with contextlib.suppress(SystemExit), _way_in(url, 1) as told:
        assert str(file) in told
        assert "secret" not in told
        assert html.escape(url) in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        sys.exit(143)  # as SIGTERM does
    assert not file.exists()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with _way_in(url, 1) as told:
        assert url in told


def test_links_of_reviews_that_were_killed_are_swept(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    services = tmp_path / "services"
    services.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as running:
        alive = services / f"review-{running.getsockname()[1]}.html"
        for file in (alive, services / "review-1.html", services / "review-app.log"):
            file.touch()
        with _way_in("http://127.0.0.1:2/", 2):
            pass
    assert sorted(services.iterdir()) == sorted([alive, services / "review-app.log"])


def test_an_app_that_is_killed_is_told(monkeypatch):
    monkeypatch.setattr("tasks.dataset.keep.own_server", lambda: None)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process.kill()
    with pytest.raises(AutolabelError, match=r"killed by signal 9: .* `.*review 'a drive'` again"):
        _serve(SimpleNamespace(process=process), SimpleNamespace(name="a drive"))


def test_the_app_knows_the_server_of_up(monkeypatch):
    chosen = []
    monkeypatch.setattr(api, "configured_api", lambda: None)
    monkeypatch.setattr(api, "known_auth", lambda _: "admin:secret")
    monkeypatch.setattr(api, "choose_api", lambda *server: chosen.append(server))
    monkeypatch.setattr(services, "running_api", lambda: None)
    _use_own_server()
    assert not chosen, "without one requests wait in storage"
    monkeypatch.setattr(services, "running_api", lambda: "http://127.0.0.1:4200/api")
    _use_own_server()
    assert chosen == [("http://127.0.0.1:4200/api", "admin:secret")]
