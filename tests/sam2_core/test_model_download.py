"""Downloads from a real HTTP server that misbehaves in every way we know."""

from __future__ import annotations

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from sam2_core import model_download as module
from sam2_core.model_download import checkpoint_path, download, fetch_checkpoint
from sam2_core.presets import TINY
from sam2_core.types import AutolabelError

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves the server's content; its `cuts` break connections, its `statuses` come first."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, start, asked = self.server, 0, self.headers.get("Range", "")
        server.requests.append((self.path, asked))
        if server.statuses:
            self.send_response(server.statuses.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        body, end = server.content[start:], len(server.content)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        self.end_headers()
        self.wfile.write(body[: server.cuts[0]] if server.cuts else body)
        if server.cuts:
            server.cuts.pop(0)
            self.connection.shutdown(2)
            self.close_connection = True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        vars(running).update(
            content=CONTENT, cuts=[], statuses=[], ranges=True,
            requests=[], url=f"http://127.0.0.1:{running.server_port}/weights.pt",
        )  # fmt: skip
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def test_download(server, tmp_path):
    seen = []
    path = tmp_path / "sub" / "weights.pt"
    digest = download(server.url, path, sha256=SHA256, progress=lambda *p: seen.append(p))
    assert digest == SHA256
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert leftovers(path.parent) == ["weights.pt"]
    assert download(server.url, path, sha256=SHA256) == ""
    assert len(server.requests) == 1, "what is there is not fetched again"


@pytest.mark.parametrize(
    ("state", "part", "sha256", "asked"),
    [
        ({"cuts": [1_000_000, 700_000, 5]}, None, SHA256, ["", "bytes="]),
        ({}, CONTENT[:2_000_000], SHA256, ["bytes=2000000-"]),  # of a process that was killed
        ({}, CONTENT[:2_000_000], "", [""]),  # nothing would tell whether both parts fit
        ({"statuses": [416]}, CONTENT + b"more", SHA256, ["bytes=", ""]),
        ({"cuts": [1_000_000], "ranges": False}, None, SHA256, ["", "bytes="]),
    ],
    ids=["cut", "killed", "killed, no sha256", "more than there is", "no ranges"],
)
def test_what_is_there_is_resumed_or_fetched_anew(server, tmp_path, state, part, sha256, asked):
    vars(server).update(state)
    if part:
        (tmp_path / ".weights.pt.part").write_bytes(part)
    assert download(server.url, tmp_path / "weights.pt", sha256=sha256) == SHA256
    for (_, found), expected in zip(server.requests, asked, strict=False):
        assert found.startswith(expected)
        assert expected or not found
    assert leftovers(tmp_path) == ["weights.pt"]


def test_busy_server_is_retried(server, tmp_path):
    server.statuses = [503, 429, 500]
    assert download(server.url, tmp_path / "weights.pt") == SHA256
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("state", "sha256", "told", "requests"),
    [
        ({"statuses": [404]}, SHA256, ("weights.pt", "404", SHA256), 1),
        ({}, "00ff", (f"{SHA256} instead of 00ff",), 1),
        # Always cut at the same place: given up.
        ({"cuts": [1000] + [0] * 20}, SHA256, ("cannot fetch",), 0),
    ],
    ids=["not found", "another sha256", "truncated for good"],
)
def test_what_cannot_be_had_whole_is_not_taken(server, tmp_path, state, sha256, told, requests):
    vars(server).update(state)
    path = tmp_path / "weights.pt"
    with pytest.raises(AutolabelError) as error:
        download(server.url, path, sha256=sha256)
    assert all(part in str(error.value) for part in (*told, server.url, str(tmp_path)))
    assert not path.exists()
    assert len(server.requests) >= requests


def test_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AutolabelError, match=r"AUTOLABEL_CACHE"):
        download(server.url, tmp_path / "file" / "weights.pt")


def test_two_at_once_fetch_it_once(server, tmp_path):
    path = tmp_path / "weights.pt"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: download(server.url, path), range(4)))
    assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_first_download_is_recorded_and_held_to(server, tmp_path, monkeypatch):
    """Trust on first use: where no sha256 is published, the first one counts ever after."""
    monkeypatch.setattr("sam2_core.presets.HUGGING_FACE_URL", server.url.rpartition("/")[0])
    facts = {"vision_encoder.x": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}
    header = json.dumps(facts).encode()
    sound = len(header).to_bytes(8, "little") + header + bytes(9)
    sha256 = hashlib.sha256(sound).hexdigest()
    # Not from a login page, a cut body or another model; none of these is held to afterwards.
    odd = (b"<html>log in", b"", sound[:-1], sound.replace(b"vision_encoder", b"another_encode"))
    for server.content in odd:
        with pytest.raises(AutolabelError, match="what was fetched is not used"):
            fetch_checkpoint(TINY, source="hugging-face", cache=tmp_path)
    server.content = sound
    server.requests.clear()
    path, digest = fetch_checkpoint(TINY, source="hugging-face", cache=tmp_path)
    assert (path.name, digest) == ("sam2.1-hiera-tiny.safetensors", sha256)
    asked = "/facebook/sam2.1-hiera-tiny/resolve/main/model.safetensors"
    assert server.requests[0][0] == asked
    assert fetch_checkpoint(TINY, source="hugging-face", cache=tmp_path) == (path, sha256)
    assert len(server.requests) == 1
    # Replaced on disk: refused.
    path.write_bytes(b"something else")
    with pytest.raises(AutolabelError, match=r"no safetensors file .*Remove it"):
        fetch_checkpoint(TINY, source="hugging-face", cache=tmp_path)
    path.write_bytes(sound[:-1] + b"x")
    with pytest.raises(AutolabelError, match=r"recorded in .*is not used"):
        fetch_checkpoint(TINY, source="hugging-face", cache=tmp_path)
    # Removed, and the server has another one now: refused too.
    path.unlink()
    server.content = b"another"
    with pytest.raises(AutolabelError, match=f"instead of {sha256}"):
        fetch_checkpoint(TINY, source="hugging-face", cache=tmp_path)


def test_published_sha256_is_held_to(server, tmp_path, monkeypatch):
    monkeypatch.setattr("sam2_core.presets.META_URL", server.url.rpartition("/")[0])
    with pytest.raises(AutolabelError) as error:
        fetch_checkpoint(TINY, cache=tmp_path)
    assert TINY.checkpoint_sha256 in str(error.value)
    assert str(checkpoint_path(TINY, cache=tmp_path)) in str(error.value)
    # A file that was placed by hand is checked just the same.
    checkpoint_path(TINY, cache=tmp_path).write_bytes(CONTENT)
    with pytest.raises(AutolabelError, match="not the published"):
        fetch_checkpoint(TINY, cache=tmp_path)
