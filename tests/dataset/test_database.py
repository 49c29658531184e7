"""Our mongod: shared, closed to other users, back after kill -9, stopped by the last to leave."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import psutil
import pymongo
import pytest
from click.testing import CliRunner
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from flows.cli import main
from flows.cli.down import command as down_command
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.dataset import database, schema
from tasks.dataset.database import DatabaseKeeper, Mongod

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


def start_user(folder: Path, who: str) -> tuple[subprocess.Popen[str], str, int]:
    """A process that uses the database, the URI that it was given, and the server's id."""
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
    pid = Mongod(folder).process_id
    assert pid is not None
    return user, uri, pid


def end(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
    deadline = time.monotonic() + 30
    while processes.command_line(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(user: subprocess.Popen[str]) -> None:
    user.kill()
    user.communicate()


def test_terminals_share_one_server_and_the_last_stops_it(tmp_path: Path) -> None:
    killed, uri, pid = start_user(tmp_path, "a")
    users = [start_user(tmp_path, name) for name in "bc"]
    assert {(uri, pid)} == {one[1:] for one in users}
    kill(killed)
    users[0][0].communicate("\n", timeout=30)
    assert Mongod(tmp_path).process_id == pid, "stopped while the other terminal still used it"
    output, _ = users[1][0].communicate("\n", timeout=30)
    assert output.strip() == "3"
    assert not processes.command_line(pid)


def test_a_killed_user_and_a_killed_server_leave_nothing_that_matters(tmp_path: Path) -> None:
    first, _, pid = start_user(tmp_path, "a")
    kill(first)
    assert Mongod(tmp_path).process_id == pid, "nobody was there to stop it"
    time.sleep(0.5)  # the journal is flushed every 0.1 s
    end(pid, signal.SIGKILL)
    second, _, _ = start_user(tmp_path, "b")
    output, _ = second.communicate("\n", timeout=60)
    assert output.strip() == "2", "what was written before the kill is still there"
    assert not Mongod(tmp_path).process_id


@pytest.mark.parametrize("left", ["", "1\n", "999999999\n"])
def test_what_a_reboot_leaves_does_no_harm(left: str, tmp_path: Path) -> None:
    folder = tmp_path / ("long " * 30)  # for a socket
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "mongod.lock").write_text(left)
    assert not Mongod(folder).stop()
    if left == "1\n":
        user, _, _ = start_user(folder, "a")
        assert user.communicate("\n", timeout=30)[0].strip() == "1"
        assert not Mongod(folder).process_id


def test_a_server_whose_users_were_killed_is_ended_by_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
    user, _, pid = start_user(tmp_path, "a")
    assert down() == "nothing that `autolabel up` started is running\n", "somebody uses it"
    kill(user)
    assert down() == "stopped: the database, which nobody used\n"
    assert not processes.command_line(pid)
    assert down() == "nothing that `autolabel up` started is running\n"


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
    monkeypatch.setattr(database, "ANSWER_TIMEOUT_MS", 10)
    for use in (schema.open_dataset, schema.existing_dataset):
        with pytest.raises(
            AutolabelError, match=r"does not answer: .*FIFTYONE_DATABASE_URI"
        ) as told:
            use("ins")
        assert "pl4nted" not in str(told.value)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mongod]:
    """A server that this process uses, on a folder that an older version left open to all."""
    folder = tmp_path / "database"
    (folder / "data").mkdir(parents=True, mode=0o755)
    (folder / "mongod.log").touch(0o644)
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(folder))
    for name in (database.URI_VARIABLE, database.OWNED_VARIABLE):
        monkeypatch.setenv(name, "mongodb://another")
    database.ensure_database()
    server = database.running_server()
    assert server is not None
    yield server
    database.release_database(folder)
    server.stop()


def test_no_other_user_gets_in(server) -> None:
    process, folder = psutil.Process(server.process_id), server.folder
    assert process.net_connections("inet") == []
    socket = Path(process.net_connections("unix")[0].laddr)
    kept = [socket, folder, *folder.glob("*.*"), *folder.glob("data/**/*")]
    assert [path for path in kept if path.stat().st_mode & 0o077] == []
    with pymongo.MongoClient(server.uri) as client:
        client.test.things.insert_one({"who": "a"})
        with pytest.raises(OperationFailure, match="Script"):
            list(client.test.things.find({"$where": "sleep(1) || true"}))


def test_a_folder_that_another_program_serves_is_refused(server, monkeypatch) -> None:
    lock = server.folder / "data" / "mongod.lock"
    told = lock.read_text()
    lock.write_text("")  # as if it were of another program
    monkeypatch.setattr(database, "ENDING_S", 0)
    with pytest.raises(AutolabelError, match="not ours to end uses this folder"):
        server.start()
    lock.write_text(told)


def test_a_killed_server_is_back_at_its_address_and_a_stopped_one_is_not(server) -> None:
    keepers = [DatabaseKeeper(), DatabaseKeeper()]  # such as `up`'s and `review`'s
    with pymongo.MongoClient(server.uri) as client:
        things = client.test.things.with_options(write_concern=WriteConcern(j=True))
        things.insert_many([{"at": at} for at in range(300)])
        client.admin.command("fsync")  # what it does every minute: the size is written
        things.insert_many([{"at": at} for at in range(61)])
        assert [one.look() for one in keepers] == ["", ""]
        end(server.process_id, signal.SIGKILL)
        assert "started again" in keepers[0].look()
        assert things.count_documents({}) == 361, "the same client goes on"
        assert things.estimated_document_count() == 361
    pid = server.process_id
    assert "started again" in keepers[1].look(), "both show decisions again"
    assert server.process_id == pid, "started once"
    end(pid, signal.SIGTERM)
    for keeper in keepers:
        with pytest.raises(AutolabelError, match=r"gone: the database was stopped.*nothing is los"):
            keeper.look()


def test_a_server_that_was_stopped_is_told_and_not_waited_for(tmp_path, monkeypatch) -> None:
    user, _, pid = start_user(tmp_path, "a")
    monkeypatch.setattr(database, "ANSWER_TIMEOUT_MS", 300)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(AutolabelError, match=f"process {pid}.* does not answer.*kill -CONT"):
            Mongod(tmp_path).join()
    finally:
        os.kill(pid, signal.SIGCONT)
    user.communicate("\n", timeout=30)
    assert not processes.command_line(pid)


def test_damaged_data_are_told_with_what_to_do(tmp_path: Path) -> None:
    user, _, _ = start_user(tmp_path, "a")
    user.communicate("\n", timeout=30)
    for table in (tmp_path / "data").glob("index-*"):
        table.write_bytes(os.urandom(table.stat().st_size))
    with pytest.raises(AutolabelError, match=r"data are damaged.*`autolabel review rebuild`"):
        Mongod(tmp_path).join()


COMMAND = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
import sys, time, click
from flows.cli import main
from tasks.dataset.database import ensure_database, running_server
def use():
    ensure_database()
    print(running_server().process_id, flush=True)
    time.sleep(60)
main.LazyGroup.get_command = lambda *_: click.Command("status", callback=use)
sys.argv = ["autolabel", "status"]
main.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_asked_to_end_leaves_no_server(tmp_path, number) -> None:
    environment = os.environ | {"AUTOLABEL_DATABASE_DIR": str(tmp_path)}
    environment = {k: v for k, v in environment.items() if not k.endswith("DATABASE_URI")}
    command = [sys.executable, "-c", COMMAND]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as user:
        pid = int(user.stdout.readline())
        assert processes.command_line(pid)
        user.send_signal(number)
    assert user.returncode == 128 + number
    assert not processes.command_line(pid)


def test_a_database_that_goes_away_under_a_command_is_a_sentence(monkeypatch, capsys) -> None:
    def lose() -> None:
        raise pymongo.errors.AutoReconnect("connection closed")

    lost = click.Command("status", callback=lose)
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: lost)
    monkeypatch.setattr(sys, "argv", ["autolabel", "status"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: FiftyOne's database does not answer (AutoR")
