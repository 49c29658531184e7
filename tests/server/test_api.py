"""Which Prefect server a command talks to, and folders that killed processes leave."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from flows.server import api as own
from flows.server.api import api_that_runs, configured_api, use_quietly
from flows.server.client import ServerAwayError
from flows.server.postgres import home
from tasks.store import private_files
from tests.integration.prefect_server import PrefectServer
from tests.prefect_tables import put_tables

EVENTS = """
import flows
from prefect.events import emit_event
for number in range(2000):
    emit_event("test.event", {"prefect.resource.id": f"test.{number}"})
"""


def test_prefect_says_nothing_of_events_that_it_still_sends_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    put_tables(home())
    with closing(PrefectServer()) as server:
        server.wait()
        command = [sys.executable, "-c", EVENTS]
        environment = os.environ | server.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_api_is_the_configured_one_else_that_of_up(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert configured_api() is None
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert configured_api() == "http://127.0.0.1:9/api"
    with pytest.raises(ServerAwayError, match="start one with `autolabel up`"):
        use_quietly()
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "")
    monkeypatch.setattr(own, "running_api", lambda: "http://127.0.0.1:4201/api")
    monkeypatch.setattr(own, "known_auth", lambda _: "user:password")
    assert api_that_runs() == os.environ["PREFECT_API_URL"] == "http://127.0.0.1:4201/api"
    assert os.environ["PREFECT_API_AUTH_STRING"] == "user:password"


FOLDER_PREFIX = "autolabel-worker-"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(private_files.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_killed_commands_are_swept(temporary):
    """Not those whose owner lives, nor while the server of a killed command still uses them."""
    code = (
        "import subprocess, sys, tempfile; from tasks.store.private_files import OwnFolder; "
        "tempfile.tempdir = sys.argv[1]; folder = OwnFolder('autolabel-worker-'); "
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']; "
        "server = subprocess.Popen(sleep, pass_fds=(folder.lock.fileno(),)); "
        "print(folder.path, server.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(temporary)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    path, server = owner.stdout.readline().split()
    old, young, link = (temporary / f"{FOLDER_PREFIX}{name}" for name in ("old", "young", "link"))
    for folder in (old, young):
        folder.mkdir()
        (folder / private_files.LOCK).touch()
    for folder in (old, Path(path)):
        os.utime(folder / private_files.LOCK, (1e9, 1e9))
    link.symlink_to(temporary)
    assert private_files.sweep(FOLDER_PREFIX) == [old]
    owner.kill()
    owner.wait()
    assert private_files.sweep(FOLDER_PREFIX) == []
    os.kill(int(server), signal.SIGKILL)
    while _runs(int(server)):
        time.sleep(0.01)
    assert private_files.sweep(FOLDER_PREFIX) == [Path(path)]
    assert {one.name for one in temporary.iterdir()} == {young.name, link.name}
