"""Our mongod: shared, restarted after kill -9, stopped by the last one to leave."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sam2_core.types import AutolabelError
from tasks import database

USE = """
import sys, pymongo
from tasks.database import ensure_database
uri = ensure_database()
db = pymongo.MongoClient(uri).test
db.things.insert_one({"who": sys.argv[1]})
print(uri, flush=True)
sys.stdin.readline()
print(db.things.count_documents({}), flush=True)
"""


def start_user(folder: Path, who: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.endswith("DATABASE_URI")}
    return subprocess.Popen(
        [sys.executable, "-c", USE, who],
        env={**environment, "AUTOLABEL_DATABASE_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_gone(pid: int) -> bool:
    for _ in range(200):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_two_terminals_at_once_share_one_server_and_the_last_stops_it(tmp_path: Path) -> None:
    users = [start_user(tmp_path, name) for name in "ab"]
    uris = [user.stdout.readline().strip() for user in users]
    assert uris[0] == uris[1]
    assert uris[0].startswith("mongodb://127.0.0.1:")
    pid = json.loads((tmp_path / "server.json").read_text())["pid"]
    users[0].communicate("\n", timeout=30)
    assert alive(pid), "stopped while the other terminal still used it"
    output, _ = users[1].communicate("\n", timeout=30)
    assert output.strip() == "2"
    assert wait_gone(pid)


def test_a_killed_user_and_a_killed_server_leave_nothing_that_matters(tmp_path: Path) -> None:
    first = start_user(tmp_path, "a")
    first.stdout.readline()
    pid = json.loads((tmp_path / "server.json").read_text())["pid"]
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert alive(pid), "nobody was there to stop it"
    time.sleep(0.5)  # the journal is flushed every 0.1 s
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)
    second = start_user(tmp_path, "b")
    second.stdout.readline()
    output, _ = second.communicate("\n", timeout=60)
    assert output.strip() == "2", "what was written before the kill is still there"
    assert database.running_server(tmp_path) is None


def test_a_server_left_by_a_killed_user_is_joined_and_then_stopped(tmp_path: Path) -> None:
    first = start_user(tmp_path, "a")
    uri = first.stdout.readline()
    pid = json.loads((tmp_path / "server.json").read_text())["pid"]
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start_user(tmp_path, "b")
    assert second.stdout.readline() == uri
    second.communicate("\n", timeout=30)
    assert wait_gone(pid)


def test_a_port_file_of_another_process_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(
        json.dumps({"pid": os.getpid(), "port": 1, "dbpath": str(tmp_path / "data")})
    )
    assert database.running_server(tmp_path) is None
    (tmp_path / "server.json").write_text("{")
    assert database.running_server(tmp_path) is None


def test_a_taken_port_is_left_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    free = database._free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(database, "_free_port", lambda: next(ports))
        monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
        server = database._start(tmp_path)
    assert server.port == free
    assert database.stop_server(tmp_path)
    assert not database.stop_server(tmp_path)


def test_the_users_own_database_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIFTYONE_DATABASE_URI", "mongodb://example.invalid:1")
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
    assert database.ensure_database() == "mongodb://example.invalid:1"
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    database._start(tmp_path)
    state = (tmp_path / "server.json").read_text()
    (tmp_path / "server.json").unlink()
    with pytest.raises(AutolabelError, match="another process uses this folder"):
        database._start(tmp_path)
    (tmp_path / "server.json").write_text(state)
    assert database.stop_server(tmp_path)
