"""Our own Prefect API ends with the command that started it, however that ends."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from flows.server import first_start
from flows.server.own import (
    FOLDER_PREFIX,
    Api,
    OwnApi,
    begin_with,
    configured_api,
    template_of,
)
from sam2_core.types import AutolabelError
from tasks.store import own_folder


def test_the_server_ends_when_its_command_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from flows.server.own import OwnApi; "
        "home = Path(sys.argv[1]); api = OwnApi(home, home / 'template.db'); "
        "print(api._process.pid, flush=True); api._process.stdout.readline(); "
        "print('bound', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline().strip() == "bound"
    assert Path(f"/proc/{pid}").exists()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline, "the server outlived its command"
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_configured_api_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert configured_api() is None
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert configured_api() == "http://127.0.0.1:4200/api"


def test_a_server_that_does_not_start_tells_why_and_where_its_log_is(tmp_path, monkeypatch):
    """Not how its last thread ended, which is what its log would close with."""
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", "forty-two")
    (tmp_path / "home").mkdir()
    server = OwnApi(tmp_path / "home", tmp_path / "cache" / "prefect.db")
    with pytest.raises(AutolabelError, match=r"port Input should be .*forty-two") as raised:
        server.wait()
    server.stop()
    log = tmp_path / "cache" / "prefect-server-failed.log"
    assert str(log) in str(raised.value)
    assert "Traceback" in log.read_text()
    assert "<no Python frame>" not in log.read_text()


@pytest.mark.ci
def test_a_damaged_template_is_made_anew(tmp_path):
    (tmp_path / "home").mkdir()
    template = tmp_path / "prefect.db"
    template.write_bytes(b"not a database" * 1000)
    server = OwnApi(tmp_path / "home", template)
    try:
        server.wait()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{server.url}/admin/version")
        told = httpx.get(f"{server.url}/admin/version", auth=tuple(server.auth.split(":")))
        assert told.status_code == 200
        assert server.auth not in " ".join(psutil.Process(server._process.pid).cmdline())
        _many_are_made_at_once(server)
    finally:
        server.stop()
    with contextlib.closing(sqlite3.connect(template)) as made:
        assert made.execute("SELECT count(*) FROM flow").fetchone() == (0,)


def _many_are_made_at_once(server):
    """SQLite refuses none of them: no answer is 503, and nothing ends unanswered."""
    with httpx.Client(
        base_url=server.url, auth=tuple(server.auth.split(":")), timeout=120
    ) as client:
        token = client.get("/csrf-token", params={"client": "many"}).json()["token"]
        client.headers.update({"Prefect-Csrf-Client": "many", "Prefect-Csrf-Token": token})
        flow = client.post("/flows/", json={"name": "many"}).json()["id"]
        wanted = {"flow_id": flow, "state": {"type": "PENDING"}}
        with ThreadPoolExecutor(10) as threads:
            answers = threads.map(lambda _: client.post("/flow_runs/", json=wanted), range(40))
            assert {one.status_code for one in answers} == {201}
    assert "database is locked" not in Path(server._log.name).read_text()


@pytest.mark.ci
def test_setup_leaves_a_database_that_servers_begin_with(tmp_path):
    command = [sys.executable, "-m", "flows.server.first_start"]
    own = os.environ | {"AUTOLABEL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    begin_with(template_of(tmp_path / "cache"), tmp_path / "prefect.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "prefect.db")) as begun:
        assert begun.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)
        assert begun.execute("SELECT count(*) FROM flow").fetchone() == (0,)


def test_what_setup_cannot_do_beforehand_is_said_and_stops_nothing(tmp_path, monkeypatch, capsys):
    def fails(*_: object, **__: object) -> None:
        raise AutolabelError("Prefect's server did not start: no ports")

    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(first_start, "compile_imports", lambda: None)
    monkeypatch.setattr(first_start, "OwnApi", fails)
    first_start.main()
    said = "the first start will take longer: Prefect's server did not start: no ports\n"
    assert capsys.readouterr() == ("", said)
    template = template_of(tmp_path / "cache")
    template.parent.mkdir()
    with contextlib.closing(sqlite3.connect(template)) as whole:
        first_start.main()
        assert capsys.readouterr() == ("", said), "an empty file is no database to begin with"
        whole.execute("CREATE TABLE alembic_version (version_num)")
        whole.execute("INSERT INTO alembic_version VALUES ('1')")
        whole.commit()
    first_start.main()  # with one that is there, whole, no server is started
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(own_folder.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_killed_commands_are_swept(temporary):
    """Not those whose owner lives, nor while the server of a killed command still uses them."""
    code = (
        "import subprocess, sys, tempfile; from tasks.store.own_folder import OwnFolder; "
        "tempfile.tempdir = sys.argv[1]; folder = OwnFolder('autolabel-prefect-'); "
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
        (folder / "prefect.db").touch()
    os.utime(old, (1e9, 1e9))
    link.symlink_to(temporary)
    assert own_folder.sweep(FOLDER_PREFIX) == [old]
    owner.kill()
    owner.wait()
    assert own_folder.sweep(FOLDER_PREFIX) == []
    os.kill(int(server), signal.SIGKILL)
    while _runs(int(server)):
        time.sleep(0.01)
    assert own_folder.sweep(FOLDER_PREFIX) == [Path(path)]
    assert {one.name for one in temporary.iterdir()} == {young.name, link.name}


def test_a_command_leaves_no_folder(temporary, monkeypatch):
    """And sweeps those that others have left."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(temporary / "no-profile"))
    left = temporary / f"{FOLDER_PREFIX}left"
    left.mkdir()
    (left / own_folder.LOCK).touch()
    with Api(temporary / "cache") as api:
        api.begin()
        (path,) = temporary.glob(f"{FOLDER_PREFIX}*")
        assert path != left
        assert own_folder.sweep(FOLDER_PREFIX) == []
    assert list(temporary.glob(f"{FOLDER_PREFIX}*")) == []
