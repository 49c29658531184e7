"""Our mongod: shared, restarted after kill -9, stopped by the last one to leave."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pymongo
import pytest
from click.testing import CliRunner
from pymongo.errors import OperationFailure

from flows.cli.down import command as down_command
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.dataset import database, database_access, mongod, mongod_process, schema
from tasks.store import private_files

USE = """
import sys, pymongo
from tasks.dataset.database import ensure_database
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
    assert re.fullmatch(r"mongodb://autolabel:\S{43}@127.0.0.1:\d+/\?authSource=admin", uris[0])
    pid = int((tmp_path / "data" / "mongod.lock").read_text())
    users[0].communicate("\n", timeout=30)
    assert alive(pid), "stopped while the other terminal still used it"
    output, _ = users[1].communicate("\n", timeout=30)
    assert output.strip() == "2"
    assert wait_gone(pid)


def test_a_killed_user_and_a_killed_server_leave_nothing_that_matters(tmp_path: Path) -> None:
    first = start_user(tmp_path, "a")
    first.stdout.readline()
    pid = int((tmp_path / "data" / "mongod.lock").read_text())
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
    pid = int((tmp_path / "data" / "mongod.lock").read_text())
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start_user(tmp_path, "b")
    assert second.stdout.readline() == uri
    second.communicate("\n", timeout=30)
    assert wait_gone(pid)


def test_a_server_whose_users_were_killed_is_ended_by_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
    user = start_user(tmp_path, "a")
    user.stdout.readline()
    lock = tmp_path / "data" / "mongod.lock"
    pid = int(lock.read_text())
    lock.write_text("")  # as of one that has not got to its lock file yet
    assert down() == "nothing of ours is running\n", "somebody uses it"
    user.send_signal(signal.SIGKILL)
    user.wait()
    assert down() == "stopped: the database, which nobody used\n"
    assert wait_gone(pid)
    assert down() == "nothing of ours is running\n"


def down() -> str:
    result = CliRunner().invoke(down_command)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_lock_file_of_another_process_is_not_believed(tmp_path: Path) -> None:
    lock = tmp_path / "data" / "mongod.lock"
    lock.parent.mkdir()
    for text in (str(os.getpid()), "", "no number", "999999999"):
        lock.write_text(text)
        assert database.running_server(tmp_path) is None
    assert not mongod_process.answers(0), "a server that is given its password has no port yet"


def test_a_taken_port_is_left_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    # As left by a start that was killed; the name is short because a socket's path has to be.
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (temporary / f"{mongod.FOLDER_PREFIX}left").mkdir()
    (temporary / f"{mongod.FOLDER_PREFIX}left" / private_files.LOCK).touch()
    free = mongod_process._free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(mongod_process, "_free_port", lambda: next(ports))
        monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
        server = mongod_process.start(tmp_path)
    assert server.port == free
    assert not list(temporary.iterdir())
    temporary.rmdir()
    assert database.stop_server(tmp_path)
    assert not database.stop_server(tmp_path)


def test_the_users_own_database_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIFTYONE_DATABASE_URI", "mongodb://example.invalid:1")
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
    assert database.ensure_database() == "mongodb://example.invalid:1"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "uri",
    ["mongodb://u:pl4nted@127.0.0.1:1", "mongodb+srv://u:pl4nted@h.invalid/", "mongodb://h:x"],
)
def test_a_database_of_the_users_own_that_does_not_answer_is_told_in_words(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIFTYONE_DATABASE_URI", uri)
    monkeypatch.setattr(database_access, "ANSWER_TIMEOUT_MS", 10)
    for use in (schema.open_dataset, schema.existing_dataset):
        with pytest.raises(
            AutolabelError, match=r"does not answer: .*FIFTYONE_DATABASE_URI"
        ) as told:
            use("ins")
        assert "pl4nted" not in str(told.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A database folder of an old version: readable by everybody, no password, something in it."""
    folder = tmp_path / "database"
    (folder / "data").mkdir(parents=True, mode=0o755)
    folder.chmod(0o755)
    with unguarded(folder) as port, pymongo.MongoClient("127.0.0.1", port) as client:
        client.test.things.insert_one({"who": "old"})
    yield folder
    database.stop_server(folder)


@contextmanager
def unguarded(folder: Path, *more: str) -> Iterator[int]:
    """A mongod as older versions started it, without a password; its process is ours to end."""
    executable = mongod.find_mongod()
    environment = mongod.library_environment(executable, folder)
    port = mongod_process._free_port()
    listening = ("--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket", *more)
    command = mongod.arguments(executable, folder / "data", *listening)
    process = mongod.spawn(command, folder / "old.log", environment)
    while not mongod_process.answers(port):
        assert process.poll() is None
        time.sleep(0.05)
    try:
        yield port
    finally:
        if process.poll() is None:
            processes.end(process, mongod.STOP_TIMEOUT_S)


def count_things(server: mongod_process.Server) -> int:
    with pymongo.MongoClient(server.uri) as client:
        return client.test.things.count_documents({})


def taken_over(folder: Path) -> mongod_process.Server:
    """What `ensure_database` does under its lock."""
    with database._start_lock(folder):
        return database._joined(folder) or mongod_process.start(folder)


def test_an_old_database_gets_a_password_and_is_closed_to_other_users(folder: Path) -> None:
    with unguarded(folder) as port:  # the old version's server still runs
        pid = int((folder / "data" / "mongod.lock").read_text())
        assert database.running_server(folder) == mongod_process.Server(
            pid, port, str(folder / "data")
        )
        with (folder / "clients").open("a") as clients:
            fcntl.flock(clients, fcntl.LOCK_SH)
            with pytest.raises(AutolabelError, match="end what uses it"):
                taken_over(folder)
        server = taken_over(folder)
    assert server.pid != pid
    assert count_things(server) == 1, "what was in it is still there"
    with pymongo.MongoClient("127.0.0.1", server.port) as stranger:
        create = partial(stranger.admin.command, "createUser", "me", pwd="x", roles=["root"])
        for action in (stranger.test.things.find_one, create):
            with pytest.raises(OperationFailure, match="requires authentication"):
                action()
    with pymongo.MongoClient(server.uri) as client, pytest.raises(OperationFailure, match="Script"):
        list(client.test.things.find({"$where": "sleep(1) || true"}))
    password = (folder / "password").read_text()
    assert password not in " ".join(psutil.Process(server.pid).cmdline())
    assert password not in (folder / "mongod.log").read_text()
    kept = [folder, *folder.glob("*.*"), *folder.glob("data/**/*"), folder / "password"]
    assert [path for path in kept if path.stat().st_mode & 0o077] == []

    assert taken_over(folder) == server
    assert alive(server.pid)
    (folder / "password").unlink()
    anew = taken_over(folder)
    assert not alive(server.pid)
    assert count_things(anew) == 1


@pytest.mark.ci
def test_a_server_that_comes_up_meanwhile_gives_way_if_it_is_ours(folder: Path) -> None:
    """Its starter was killed at once: it had not even its lock when we looked."""
    (folder / "password").touch(0o600)
    (folder / "password").write_text("of-another-database")
    with unguarded(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database.os, "getuid", lambda: 12345)
            with pytest.raises(AutolabelError, match="not ours to end uses this folder"):
                mongod_process.start(folder)
        assert count_things(mongod_process.start(folder)) == 1
    assert (folder / "password").read_text() != "of-another-database"
    (folder / "password").unlink()  # killed before there was one
    assert count_things(mongod_process.start(folder)) == 1


def test_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("known to all")
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(AutolabelError, match="delete the file"):
        print(mongod_process.Server(1, 1, str(tmp_path / "data")).uri)
