"""Storage that does not answer for a while costs a flow time, and not its night."""

import socket
import threading
import time

import pytest

from tasks.store import retry, storage
from tasks.store.storage import StorageError
from tests.conftest import use_s3_endpoint


class Away:
    """Storage that answers from the given call on."""

    def __init__(self, calls, answer=None, cause=ConnectionRefusedError):
        self.left, self.answer, self.cause = calls, answer, cause

    def __call__(self, *_, **__):
        self.left -= 1
        if self.left >= 0:
            raise StorageError("cannot list s3://labels") from self.cause("refused")
        return self.answer


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_S", 0.01)


def test_storage_is_waited_for_and_that_is_told():
    lines = []
    assert retry.until_answered(Away(3, "there"), "planning", lines.append, 60) == "there"
    assert len(lines) == 3
    assert lines[0].startswith("planning: cannot list s3://labels; trying again in ")


def test_what_no_pause_mends_ends_at_once():
    refused = Away(2, cause=PermissionError)
    with pytest.raises(StorageError):
        retry.until_answered(refused, "planning", print, 60)
    assert refused.left == 1


def test_patience_ends():
    with pytest.raises(StorageError):
        retry.until_answered(Away(10_000), "planning", print, 0.05)


def test_a_server_that_accepts_and_never_answers_is_asked_again_only_for_a_while(monkeypatch):
    server = socket.create_server(("127.0.0.1", 0))
    use_s3_endpoint(monkeypatch, f"http://127.0.0.1:{server.getsockname()[1]}")
    monkeypatch.setenv(storage.TIMEOUT_S.name, "1")
    monkeypatch.setattr(retry, "BEGUN_WITHIN_S", 0.5)
    asked = []

    def hold():
        while True:
            try:
                asked.append(server.accept())
            except OSError:
                return

    threading.Thread(target=hold, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(StorageError, match="imeout"):
        storage.read_bytes("s3://labels/run")
    server.close()
    assert (len(asked), time.monotonic() - began < 30) == (1, True)
