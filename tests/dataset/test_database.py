"""Our mongod: shared, closed to other users, back after kill -9, stopped by the last to leave."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pymongo
import pytest
from click.testing import CliRunner
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from flows.cli.down import command as down_command
from sam2_core.types import AutolabelError
from tasks.dataset import database, database_access, mongod, schema
from tasks.dataset.database import DatabaseKeeper

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


def start_user(folder: Path, who: str) -> tuple[subprocess.Popen[str], str, mongod.Server]:
    """A process that uses the database, the URI that it was given, and the server."""
    environment = {k: v for k, v in os.environ.items() if not k.endswith("DATABASE_URI")}
    user = subprocess.Popen(
        [sys.executable, "-c", USE, who],
        env={**environment, "AUTOLABEL_DATABASE_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    uri = user.stdout.readline().strip()
    server = database.running_server(folder)
    assert server is not None
    return user, uri, server


def end(server: mongod.Server, number: signal.Signals) -> None:
    os.kill(server.pid, number)
    wait_gone(server)


def wait_gone(server: mongod.Server) -> None:
    deadline = time.monotonic() + 30
    while server.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(user: subprocess.Popen[str]) -> None:
    user.kill()
    user.communicate()


def test_terminals_share_one_server_and_the_last_stops_it(tmp_path: Path) -> None:
    killed, uri, server = start_user(tmp_path, "a")
    users = [start_user(tmp_path, name) for name in "bc"]
    assert {(uri, server)} == {one[1:] for one in users}
    kill(killed)
    users[0][0].communicate("\n", timeout=30)
    assert server.is_alive(), "stopped while the other terminal still used it"
    output, _ = users[1][0].communicate("\n", timeout=30)
    assert output.strip() == "3"
    assert not server.is_alive()


def test_a_killed_user_and_a_killed_server_leave_nothing_that_matters(tmp_path: Path) -> None:
    first, _, server = start_user(tmp_path, "a")
    kill(first)
    assert server.is_alive(), "nobody was there to stop it"
    time.sleep(0.5)  # the journal is flushed every 0.1 s
    end(server, signal.SIGKILL)
    second, _, _ = start_user(tmp_path, "b")
    output, _ = second.communicate("\n", timeout=60)
    assert output.strip() == "2", "what was written before the kill is still there"
    assert database.running_server(tmp_path) is None


@pytest.mark.parametrize("left", ["", "1\n", "999999999\n"])
def test_what_a_reboot_leaves_does_no_harm(left: str, tmp_path: Path) -> None:
    (tmp_path / "server.lock").write_text(left)
    assert not database.stop_server(tmp_path)
    if left == "1\n":
        user, _, server = start_user(tmp_path / ("long " * 30), "a")  # for a socket
        assert user.communicate("\n", timeout=30)[0].strip() == "1"
        assert not server.is_alive()


def test_a_server_whose_users_were_killed_is_ended_by_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
    user, _, server = start_user(tmp_path, "a")
    assert down() == "nothing of ours is running\n", "somebody uses it"
    kill(user)
    assert down() == "stopped: the database, which nobody used\n"
    assert not server.is_alive()
    assert down() == "nothing of ours is running\n"


def down() -> str:
    result = CliRunner().invoke(down_command)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_users_own_database_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIFTYONE_DATABASE_URI", "mongodb://example.invalid:1")
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
    assert database.ensure_database() == "mongodb://example.invalid:1"
    assert DatabaseKeeper().look() == ""
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
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[mongod.Server]:
    """A server that this process uses, on a folder that an older version left open to all."""
    folder = tmp_path / "database"
    (folder / "data").mkdir(parents=True, mode=0o755)
    (folder / "mongod.log").touch(0o644)
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(folder))
    with database._start_lock(folder):
        server = mongod.start(folder)
    for name in (database.URI_VARIABLE, database.OWNED_VARIABLE):
        monkeypatch.setenv(name, server.uri)
    yield server
    database.stop_server(folder)


def test_no_other_user_gets_in(server) -> None:
    process, folder = psutil.Process(server.pid), server.folder
    assert process.net_connections("inet") == []
    socket = Path(process.net_connections("unix")[0].laddr)
    kept = [socket, folder, *folder.glob("*.*"), *folder.glob("data/**/*")]
    assert [path for path in kept if path.stat().st_mode & 0o077] == []
    with pymongo.MongoClient(server.uri) as client:
        client.test.things.insert_one({"who": "a"})
        with pytest.raises(OperationFailure, match="Script"):
            list(client.test.things.find({"$where": "sleep(1) || true"}))


def test_a_folder_that_another_program_serves_is_refused(server, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(mongod.fcntl, "flock", lambda *_: None)  # it knows nothing of our lock
        with pytest.raises(AutolabelError, match="not ours to end uses this folder"):
            mongod.start(server.folder)
    os.kill(server.pid, signal.SIGKILL)  # its socket is gone with that
    wait_gone(server)


def test_a_server_that_hangs_is_ended_unless_somebody_uses_it(server) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    with (server.folder / "clients").open("a") as clients:
        fcntl.flock(clients, fcntl.LOCK_SH)
        with pytest.raises(AutolabelError, match="end what uses it"):
            database.ensure_database()
    os.kill(server.pid, signal.SIGCONT)


def test_a_killed_server_is_back_at_its_address_and_a_stopped_one_is_not(server) -> None:
    keepers = [DatabaseKeeper(), DatabaseKeeper()]  # such as `up`'s and `review`'s
    with pymongo.MongoClient(server.uri) as client:
        things = client.test.things.with_options(write_concern=WriteConcern(j=True))
        things.insert_many([{"at": at} for at in range(300)])
        client.admin.command("fsync")  # what it does every minute: the size is written
        things.insert_many([{"at": at} for at in range(61)])
        assert [one.look() for one in keepers] == ["", ""]
        end(server, signal.SIGKILL)
        assert "started again" in keepers[0].look()
        assert things.count_documents({}) == 361, "the same client goes on"
        assert things.estimated_document_count() == 361
    keepers[1].look()
    assert keepers[1].server == keepers[0].server != server, "started once"
    end(keepers[0].server, signal.SIGTERM)
    for keeper in keepers:
        with pytest.raises(AutolabelError, match=r"gone: the database was stopped.*nothing is los"):
            keeper.look()


def test_one_that_is_killed_over_and_over_is_given_up(server, monkeypatch) -> None:
    monkeypatch.setattr(database, "MOST_STARTS", 0)
    keeper = DatabaseKeeper()
    end(server, signal.SIGKILL)
    with pytest.raises(AutolabelError, match="is memory short"):
        keeper.look()
