"""A database that goes away: waited for once, then left alone, and told from other errors."""

from functools import partial
from types import SimpleNamespace

import pymongo
import pytest
from pymongo import errors

from sam2_core.types import AutolabelError
from tasks.dataset import database
from tasks.dataset.database import DatabaseAwayError, is_away, waits_for_database


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """No pauses, and nothing left of what another test met; returns the pauses."""
    pauses = []
    monkeypatch.setattr(database.time, "sleep", pauses.append)
    monkeypatch.setattr(database, "_left_alone_until", 0.0)
    return pauses


def chained(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (errors.ServerSelectionTimeoutError("no servers"), True),
        (errors.NetworkTimeout("cut"), True),
        (errors.OperationFailure("interrupted", 11600), True),
        (ConnectionError("Could not connect to `mongod`"), True),
        (chained(RuntimeError("x"), errors.AutoReconnect("closed")), True),
        (errors.OperationFailure("not authorized", 13), False),
        (errors.DuplicateKeyError("twice", 11000), False),
        (ConnectionError("S3 is away"), False),
        (AutolabelError("its frames are gone"), False),
        (chained(DatabaseAwayError("away"), errors.AutoReconnect("closed")), False),
    ],
)
def test_what_a_database_that_is_away_looks_like(error, answer):
    assert is_away(error) == answer


def test_a_database_that_comes_back_is_waited_for(waits):
    answers = [errors.AutoReconnect("closed"), errors.NetworkTimeout("cut"), 7]

    @waits_for_database
    def load():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert load() == 7
    assert len(waits) == 2


def test_one_that_does_not_is_left_alone(waits, monkeypatch):
    """A real client and a port where nobody listens: the second load does not wait again."""
    client = pymongo.MongoClient("127.0.0.1", 1, serverSelectionTimeoutMS=10)
    calls = []

    @waits_for_database
    def load():
        calls.append(1)
        client.admin.command("ping")

    monkeypatch.setenv(database.WAIT_VARIABLE, "1")
    with pytest.raises(DatabaseAwayError, match=r"labels are in storage.*load-dataset"):
        load()
    assert len(calls) > 1
    calls.clear()
    monkeypatch.setenv(database.WAIT_VARIABLE, "1000")
    with pytest.raises(DatabaseAwayError):
        load()
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError):
        waits_for_database(lambda: 1 / 0)()
    waits_for_database(lambda: None)()
    assert database._left_alone_until == 0


@pytest.mark.parametrize(("free", "told"), [(0, "drives, whose disk is full (make "), (1, "")])
def test_a_full_disk_is_named_where_our_database_has_gone(monkeypatch, tmp_path, free, told):
    monkeypatch.delenv(database.URI_VARIABLE, raising=False)
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path / "drives"))
    (tmp_path / "drives").mkdir()
    usage = SimpleNamespace(free=free << 30)
    monkeypatch.setattr(database.shutil, "disk_usage", lambda _: usage)
    assert told in database._where()
    assert bool(database._where()) == bool(told)
    why = database._why_not("", tmp_path / "mongod.log", tmp_path)
    assert ("the disk is full: make room there" in why) == bool(told)


def test_a_database_of_the_users_own_is_named_with_its_variable(monkeypatch):
    monkeypatch.setenv(database.URI_VARIABLE, "mongodb://joe:word@127.0.0.1:1/")
    monkeypatch.setenv(database.WAIT_VARIABLE, "0")
    gone = chained(AutolabelError("does not answer"), errors.ServerSelectionTimeoutError("x"))

    @waits_for_database
    def load():
        raise gone

    with pytest.raises(DatabaseAwayError) as raised:
        load()
    assert str(raised.value).startswith(
        "FiftyOne's database at mongodb://***@127.0.0.1:1/ (FIFTYONE_DATABASE_URI) does not answer "
        "(ServerSelectionTimeoutError); the labels are in storage"
    )


@pytest.mark.usefixtures("database")
def test_who_waits_is_told_in_words_and_nobody_waits_at_exit(monkeypatch) -> None:
    from fiftyone.core.odm import database as fiftyone_database

    nobody = pymongo.MongoClient("127.0.0.1", 1)
    monkeypatch.setattr(fiftyone_database, "_client", nobody)
    monkeypatch.setattr(database, "PING_S", 0.05)
    told = partial(pytest.raises, DatabaseAwayError, match="nothing was changed: the terminal")
    with told():
        database.await_answer(0.1)  # pymongo's own patience is 30 s

    def out_of_time(_: str) -> None:
        raise errors.ExecutionTimeout("operation would exceed time limit", 50)

    slow = SimpleNamespace(admin=SimpleNamespace(command=out_of_time))
    monkeypatch.setattr(fiftyone_database, "_client", slow)
    with told():
        database.await_answer(0.1)
    left_out: list[object] = []
    monkeypatch.setattr(database.atexit, "unregister", left_out.append)
    database._leave()
    assert left_out == [fiftyone_database._delete_non_persistent_datasets_if_allowed]
    nobody.close()


def test_what_is_in_storage_is_shown_once_the_database_is_back(monkeypatch) -> None:
    answers: list[Exception | None] = [errors.AutoReconnect("closed"), None]

    def show() -> None:
        if answer := answers.pop(0):
            raise answer

    database.show_stored(show)
    assert not answers
    monkeypatch.setattr(database, "PATIENCE_S", 0)
    answers.append(errors.AutoReconnect("closed"))
    with pytest.raises(DatabaseAwayError, match="in storage, and nothing is lost"):
        database.show_stored(show)
