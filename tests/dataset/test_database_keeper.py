"""A database of ours that is killed while somebody uses it comes back where it was."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pymongo
import pytest
from pymongo import WriteConcern
from pymongo.errors import AutoReconnect, ExecutionTimeout

from sam2_core.types import AutolabelError
from tasks.dataset import database, database_keeper, mongod_process
from tasks.dataset.database_access import DatabaseAwayError
from tasks.dataset.database_keeper import DatabaseKeeper


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[mongod_process.Server]:
    """A server that this process uses."""
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
    with database._start_lock(tmp_path):
        server = mongod_process.start(tmp_path)
    for name in (database.URI_VARIABLE, database.OWNED_VARIABLE):
        monkeypatch.setenv(name, server.uri)
    yield server
    database.stop_server(tmp_path)


def end(server: mongod_process.Server, number: signal.Signals) -> None:
    os.kill(server.pid, number)
    deadline = time.monotonic() + 30
    while mongod_process.is_alive(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_server_is_back_at_its_address_and_a_stopped_one_is_not(server) -> None:
    keepers = [DatabaseKeeper(), DatabaseKeeper()]  # such as `up`'s and `review`'s
    with pymongo.MongoClient(server.uri) as client:
        client.test.things.insert_one({"who": "a"})
        client.admin.command("fsync")
        assert [one.look() for one in keepers] == ["", ""]
        end(server, signal.SIGKILL)
        assert "started again" in keepers[0].look()
        assert client.test.things.count_documents({}) == 1, "the same client goes on"
    again = database.own_server()
    assert again is not None
    assert (again.port, again.pid == server.pid) == (server.port, False)
    keepers[1].look()
    assert database.own_server() == again, "started once"
    end(again, signal.SIGTERM)
    for keeper in keepers:
        with pytest.raises(AutolabelError, match=r"gone: the database was stopped.*nothing is los"):
            keeper.look()


def test_sizes_are_right_after_a_kill(server, tmp_path, monkeypatch) -> None:
    def sizes(uri: str) -> tuple[int, int]:
        with pymongo.MongoClient(uri) as client:
            things = client.fiftyone.things
            return things.estimated_document_count(), things.count_documents({})

    with pymongo.MongoClient(server.uri) as client:
        client.fiftyone.things.insert_many([{"at": at} for at in range(300)])
        client.admin.command("fsync")  # what it does every minute: the size is written
        client.fiftyone.things.with_options(write_concern=WriteConcern(j=True)).insert_many(
            [{"at": at} for at in range(61)]
        )
    keeper = DatabaseKeeper()
    end(server, signal.SIGKILL)
    assert "started again" in keeper.look()
    assert sizes(server.uri) == (361, 361)
    looked_at = []
    monkeypatch.setattr(mongod_process, "_is_wrong", lambda one: looked_at.append(one.name))
    mongod_process.make_counts_true(tmp_path, server.uri)
    assert not looked_at, "once"
    mongod_process.note_killed(tmp_path)
    mongod_process.make_counts_true(tmp_path, "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50")
    mongod_process.make_counts_true(tmp_path, server.uri)
    assert looked_at == ["things"], "by the next start where there was no time"


def test_one_that_is_killed_over_and_over_is_given_up(server, monkeypatch) -> None:
    monkeypatch.setattr(database_keeper, "MOST_STARTS", 0)
    keeper = DatabaseKeeper()
    end(server, signal.SIGKILL)
    with pytest.raises(AutolabelError, match="is memory short"):
        keeper.look()


def test_the_users_own_database_is_left_alone(monkeypatch) -> None:
    monkeypatch.setenv(database.URI_VARIABLE, "mongodb://example.invalid:1")
    assert DatabaseKeeper().look() == ""


@pytest.mark.usefixtures("database")
def test_who_waits_is_told_in_words_and_nobody_waits_at_exit(monkeypatch) -> None:
    from fiftyone.core.odm import database as fiftyone_database

    nobody = pymongo.MongoClient("127.0.0.1", 1)
    monkeypatch.setattr(fiftyone_database, "_client", nobody)
    monkeypatch.setattr(database_keeper, "PING_S", 0.05)
    told = partial(pytest.raises, DatabaseAwayError, match="nothing was changed: the terminal")
    with told():
        database_keeper.await_answer(0.1)  # pymongo's own patience is 30 s

    def out_of_time(_: str) -> None:
        raise ExecutionTimeout("operation would exceed time limit", 50)

    slow = SimpleNamespace(admin=SimpleNamespace(command=out_of_time))
    monkeypatch.setattr(database_keeper, "_client", lambda: slow)
    with told():
        database_keeper.await_answer(0.1)
    left_out: list[object] = []
    monkeypatch.setattr(database_keeper.atexit, "unregister", left_out.append)
    database_keeper._leave()
    assert left_out == [fiftyone_database._delete_non_persistent_datasets_if_allowed]
    nobody.close()


def test_what_is_in_storage_is_shown_once_the_database_is_back(monkeypatch) -> None:
    answers: list[Exception | None] = [AutoReconnect("closed"), None]

    def show() -> None:
        if answer := answers.pop(0):
            raise answer

    database_keeper.show_stored(show)
    assert not answers
    monkeypatch.setattr(database_keeper, "PATIENCE_S", 0)
    answers.append(AutoReconnect("closed"))
    with pytest.raises(DatabaseAwayError, match="in storage, and nothing is lost"):
        database_keeper.show_stored(show)
