"""Planted secrets: in no output, artifact, log, dataset and row of Prefect's database."""

import json
from pathlib import Path

import pytest

from tests.conftest import OWN_CACHE
from tests.frames.sources import QuietHandler, serve
from tests.integration.dataset_rows import all_documents
from tests.integration.runs import write_boxes, write_image
from tests.planted import ADDRESSES, PLANTED


@pytest.mark.parametrize("option", ["SOURCE", "--out", "--boxes", "--detector", "--model"])
def test_every_address_is_refused_before_anything_starts(option, terminal, tmp_path):
    write_image(tmp_path / "in" / "drive" / "1.jpg")
    before = sorted((tmp_path / "cache").rglob("*"))
    for address in ADDRESSES:
        given = {"SOURCE": tmp_path / "in", "--out": tmp_path / "out", option: address}
        source = given.pop("SOURCE")
        words = [str(word) for pair in given.items() for word in pair]
        _, told = terminal.run("label", source, *words, "--no-dataset", code=2)
        assert PLANTED not in told, address
        named = "Error: SOURCE: " if option == "SOURCE" else "Error: --"
        assert named in told, (address, told)
    assert not (tmp_path / "out").exists()
    assert sorted((tmp_path / "cache").rglob("*")) == before


@pytest.mark.parametrize("words", [
    ("label", "in", "--frames", "{}"), ("evaluate", "{}"), ("bench", "--model"),
    ("review", "rebuild", "x", "--out", "{}"), ("{}",), ("label", "in", "--backend", "{}"),
])  # fmt: skip
def test_no_message_of_a_command_repeats_a_secret(words, terminal):
    address = f"https://user:{PLANTED}@host.invalid/x"
    _, told = terminal.run(*(word.replace("{}", address) for word in words), code=None)
    assert told
    assert PLANTED not in told


class _Redirecting(QuietHandler):
    """A web server whose store signs addresses: `gone.jpg` leads to one that has expired."""

    def do_GET(self):
        self._redirect() or super().do_GET()

    def do_HEAD(self):
        if "gone.jpg" in self.path:  # what a listing asks for is there
            self.path = "/drive/1.jpg"
        super().do_HEAD()

    def _redirect(self):
        if "X-Amz-Signature" in self.path:
            self.send_error(410)
        elif self.path.endswith("gone.jpg"):
            self.send_response(302)
            self.send_header("Location", f"/signed?X-Amz-Signature={PLANTED}")
            self.end_headers()
        else:
            return False
        return True


@pytest.fixture
def web(tmp_path):
    for name in ("1", "2"):
        write_image(tmp_path / "web" / "drive" / f"{name}.jpg")
    (tmp_path / "web" / "drive" / "gone.jpg").touch()
    with serve(tmp_path / "web", _Redirecting) as url:
        yield url


def test_what_a_library_says_of_a_failure_is_kept_without_its_secret(
    web, terminal, under_prefect, tmp_path, monkeypatch
):
    """The client's own message names the signed address that it was led to."""
    from prefect import flow

    from tasks.errors import redacted_errors

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{PLANTED}-key")
    for name in ("1", "2", "gone"):
        write_boxes(tmp_path / "boxes" / "drive" / f"{name}.txt", ["car 0.9 20 15 100 70"])
    done, told = terminal.label(
        f"{web}/drive", "--boxes", tmp_path / "boxes", "--out", tmp_path / "out",
        "--dataset", "leaks", code=1,
    )  # fmt: skip
    (failed,) = done["failed"]
    assert "410" in failed["reason"]
    assert "X-Amz-Signature=***" in failed["reason"]

    @flow(name="broken", persist_result=False)
    def broken():
        with redacted_errors():
            raise OSError(f"{web}/signed?X-Amz-Signature={PLANTED} and key {PLANTED}-key")

    state = broken(return_state=True)
    assert "X-Amz-Signature=***" in state.message

    documents = all_documents()
    assert any(f"{web}/drive/1.jpg" in document for document in documents)
    databases = [
        path for path in (Path(OWN_CACHE) / "prefect" / "data").rglob("*") if path.is_file()
    ]
    assert any(b"broken" in path.read_bytes() for path in databases)
    stored = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any(b"Signature=***" in path.read_bytes() for path in stored)
    cached = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    for path in (*stored, *databases, *cached):
        assert PLANTED.encode() not in path.read_bytes(), path
    assert PLANTED not in "".join(documents) + told + json.dumps(done)
