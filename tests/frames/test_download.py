"""Downloads through a real S3 server, an HTTP server and a proxy that breaks things."""

import contextlib
import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from sam2_core.types import AutolabelError
from tasks.dataset.recorded_frames import find_pictures
from tasks.frames import download as downloading
from tasks.frames.discover import discover
from tasks.frames.download import CacheError, ChangedError, download, fetch
from tasks.frames.images import NotReadError, read_image
from tasks.frames.sources import remember_frames
from tasks.processes import WORKER_VARIABLE
from tasks.store import addresses, retry, storage
from tasks.types import FrameFailure, FrameRef, FrameSelection
from tests.conftest import use_s3_endpoint
from tests.faults import FaultyProxy
from tests.frames.sources import QuietHandler, flip_bit, serve


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setenv("AUTOLABEL_STORAGE_TIMEOUT_S", "1")


@pytest.fixture
def bucket(s3):
    fsspec.filesystem("s3").pipe({f"{s3}/in/{i}.jpg": bytes([i]) * 50_000 for i in range(6)})
    return f"{s3}/in"


@pytest.fixture
def faulty(bucket, s3_endpoint, monkeypatch):
    with FaultyProxy(s3_endpoint) as proxy:
        use_s3_endpoint(monkeypatch, proxy.url)
        yield proxy


def frames_of(url, selection=":"):
    return [f for one in discover([url], FrameSelection.parse(selection)) for f in one.frames]


def assert_whole(outcomes):
    assert [frame.index for frame in outcomes] == list(range(6))
    for frame in outcomes:
        assert Path(frame.local_path).read_bytes() == bytes([frame.index]) * 50_000
        assert frame.local_path.endswith(".jpg")


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_downloads_come_in_order_and_only_once(bucket, faulty, tmp_path):
    frames = frames_of(bucket)
    seen = []
    assert_whole(download(frames, seen.append))
    assert [frame.index for frame in seen] == list(range(6))
    before = len(faulty.requests)
    assert_whole(download(frames))
    assert len(faulty.requests) == before  # a cached file costs a stat, not a request
    assert len(files(tmp_path / "cache")) == 6


@pytest.fixture(params=["s3", "http"])
def source(request, tmp_path):
    """Six files behind a proxy: their address, and the proxy."""
    if request.param == "s3":
        yield request.getfixturevalue("bucket"), request.getfixturevalue("faulty")
        return
    for index in range(6):
        storage.write_bytes(str(tmp_path / "www" / f"{index}.jpg"), bytes([index]) * 50_000)
    with serve(tmp_path / "www") as url, FaultyProxy(url) as proxy:
        yield proxy.url, proxy


def test_passing_faults_are_retried(source, tmp_path):
    url, proxy = source
    frames = frames_of(url)
    faults = dict(enumerate(["500", "503", "reset", "cut", "slow"]))
    proxy.silence_s = 1.5

    def once_each(method, path):
        found = re.search(r"/(\d)\.jpg", path)
        return faults.pop(int(found[1]), "") if found and method == "GET" else ""

    proxy.fault = once_each
    assert_whole(download(frames))
    assert not faults
    assert len(files(tmp_path / "cache")) == 6  # and nothing half-written


@pytest.mark.parametrize(
    ("source", "fault", "reason"),
    [
        ("s3", "403", "access denied"), ("s3", "404", "not exist"),
        ("s3", "ExpiredToken", "the credentials have expired (AWS_SESSION_TOKEN)"),
        ("http", "403", "access denied"), ("http", "404", "not exist"),
    ],
    indirect=["source"],
)  # fmt: skip
def test_refusals_are_not_retried_and_the_others_are_done(source, fault, reason):
    url, proxy = source
    frames = frames_of(url)
    before = len(proxy.requests)
    proxy.fault = lambda method, path: fault if "/3.jpg" in path else ""
    outcomes = download(frames)
    assert [isinstance(one, FrameFailure) for one in outcomes] == [i == 3 for i in range(6)]
    assert outcomes[3].stage == "download"
    assert reason in outcomes[3].reason
    assert f"{url}/3.jpg" in outcomes[3].reason
    assert "testing-secret" not in outcomes[3].reason
    assert sum("/3.jpg" in path for _, path, _ in proxy.requests[before:]) == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("500", ""), ("403", "access denied"), ("ExpiredToken", "the credentials have expired")],
)
def test_a_server_that_stays_as_it_is_is_given_up(bucket, faulty, fault, reason):
    faulty.fault = lambda method, path: fault
    with pytest.raises(AutolabelError, match=f"cannot list {bucket}.*{reason}"):
        frames_of(bucket)
    assert (len(faulty.requests) == 1) == (fault != "500")
    with pytest.raises(AutolabelError, match=rf"cannot write .*{reason}"):
        storage.write_bytes(f"{bucket}/out", b"x")


def test_no_credentials_is_a_clear_error(bucket, monkeypatch, tmp_path):
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    told = "no credentials here: set AWS_ACCESS_KEY_ID.*"
    with pytest.raises(AutolabelError, match=f"{told}; workers have those of the shell that"):
        frames_of(bucket)
    monkeypatch.setenv(WORKER_VARIABLE, "1")
    with pytest.raises(AutolabelError, match=f"{told}`autolabel down`, then `autolabel up` in one"):
        frames_of(bucket)


class Careless(QuietHandler):
    """Lists every file as 1,000 bytes and sends far more, or sends you elsewhere."""

    sent, way = 0, ""

    def do_GET(self):
        if self.way == "elsewhere" and self.headers.get("Host", "").startswith("127."):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/secret")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", '"e"')
        if self.way == "gzip":
            self.send_header("Content-Encoding", "gzip")
        if self.command == "HEAD" or self.way == "elsewhere":
            self.send_header("Content-Length", "1000")
        self.end_headers()
        if self.command == "GET":
            data = {"gzip": gzip.compress(bytes(1 << 24))[:1000], "elsewhere": bytes(1000)}
            data = data.get(self.way, bytes(1 << 20))
            for _ in range(1 if self.way in {"gzip", "elsewhere"} else 200):
                self.wfile.write(data)
                type(self).sent += len(data)

    do_HEAD = do_GET


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("gzip", "sends it compressed"), ("endless", "more than the 1000 bytes"),
        ("elsewhere", "redirects to localhost, which is a private address"),
    ],
)  # fmt: skip
def test_what_a_web_server_sends_is_bounded(way, reason, tmp_path, monkeypatch):
    handler = type("Handler", (Careless,), {"way": way, "sent": 0})
    monkeypatch.setattr(storage, "is_private", lambda host: host == "localhost")
    with serve(tmp_path, handler) as url:
        frame = FrameRef("drive", "", 0, None, f"{url}/0.jpg", etag="e", size_bytes=1000)
        (outcome,) = download([frame])
        if way != "endless":  # whatever is read: lists, boxes
            with pytest.raises(storage.StorageError, match=reason):
                storage.read_bytes(f"{url}/boxes.json")
    assert reason in outcome.reason
    assert handler.sent < 20 << 20
    assert not files(tmp_path / "cache")


def test_redirects_within_a_private_network_are_followed(tmp_path):
    handler = type("Handler", (Careless,), {"way": "elsewhere"})
    with serve(tmp_path, handler) as url:
        assert fetch(f"{url}/0.jpg", "e", 1000).stat().st_size == 1000


def test_private_addresses():
    hosts = "127.0.0.1 10.1.2.3 169.254.169.254 [::1] localhost 93.184.216.34 no-such-host.invalid"
    assert [addresses.is_private(host) for host in hosts.split()] == [True] * 5 + [False] * 2


@pytest.mark.parametrize("uri", ["{bucket}/0.jpg", "{memory}/0.jpg"])
def test_no_more_and_no_less_is_written_than_was_listed(uri, bucket, memory, monkeypatch):
    uri = uri.format(bucket=bucket, memory=memory)
    storage.write_bytes(uri, bytes(50_000))
    with pytest.raises(storage.StorageError, match="50000 bytes arrived of 50001"):
        fetch(uri, "", 50_001)
    with pytest.raises(storage.StorageError, match="more than the 1000 bytes that were listed"):
        fetch(uri, "", 1000)
    monkeypatch.setattr(storage.filesystem(uri)[0], "default_block_size", 1000, raising=False)
    with pytest.raises(storage.StorageError, match="more than the 1001 bytes that were listed"):
        fetch(uri, "", 1001)


def test_a_flipped_bit_in_the_cache_is_no_answer(bucket):
    frames = frames_of(bucket)
    for frame, place in zip(download(frames), (0, 1, 100, 300, 400, 500), strict=True):
        flip_bit(frame, place)
    assert_whole(download(frames))


def test_a_truncated_cached_file_is_fetched_again(bucket):
    frames = frames_of(bucket)
    Path(download(frames)[2].local_path).write_bytes(b"half")
    assert_whole(download(frames))
    flip_bit(download(frames)[2])
    remember_frames(frames)
    find_pictures(frames)  # exports copy pictures that nobody decodes
    assert_whole(download(frames))


@pytest.mark.ci
def test_two_processes_at_once_are_harmless(bucket, tmp_path):
    code = (
        "import sys; from tasks.frames.discover import discover\n"
        "from tasks.frames.download import download\n"
        "(one,) = discover(sys.argv[1:]); print([f.size_bytes for f in download(one.frames)])"
    )
    command = [sys.executable, "-c", code, bucket]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=100)[0] for process in both] == [f"{[50_000] * 6}\n"] * 2
    assert len(files(tmp_path / "cache")) == 6


def test_a_cache_that_cannot_be_written_stops_the_run(bucket, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="AUTOLABEL_CACHE"):
        download(frames_of(bucket))


CHANGED = "changed while it was being labeled: run again"


@pytest.mark.parametrize("place", ["s3", "large on s3", "memory", "http"])
def test_a_file_replaced_after_its_listing_is_not_kept_under_its_old_version(
    place, bucket, memory, tmp_path, monkeypatch
):
    """Of the same size, and put back before anybody looks again where the server tells versions."""
    old, new = b"a" * 50_000, b"b" * 50_000
    folder = tmp_path / "www"
    with serve(folder) if place == "http" else contextlib.nullcontext() as url:
        root = {"memory": f"{memory}/d", "http": str(folder)}.get(place, bucket)
        storage.write_bytes(f"{root}/0.jpg", old)
        if place == "http":
            os.utime(folder / "0.jpg", (1, 1))
        if place == "large on s3":
            monkeypatch.setattr(storage.filesystem(root)[0], "default_block_size", 1000)
        frames = frames_of(url or root)[:1]
        storage.write_bytes(f"{root}/0.jpg", new)
        (outcome,) = download(frames)
        assert isinstance(outcome, FrameFailure)
        assert (outcome.stage, outcome.may_yet_come) == ("download", True)
        assert CHANGED in outcome.reason
        assert not files(tmp_path / "cache")
        (again,) = download(frames_of(url or root)[:1])
        assert Path(again.local_path).read_bytes() == new


def test_what_an_s3_server_sends_is_judged_by_its_own_version(bucket, monkeypatch, tmp_path):
    """The object is another one only while it is sent: no look before or after can tell."""
    (frame, *_) = frames_of(bucket)
    real = downloading.transfer

    def swapped(uri, *rest):
        storage.write_bytes(uri, b"x" * 50_000)
        try:
            return real(uri, *rest)
        finally:
            storage.write_bytes(uri, bytes([0]) * 50_000)

    monkeypatch.setattr("tasks.frames.download.transfer", swapped)
    with pytest.raises(ChangedError, match=CHANGED):
        fetch(frame.uri, frame.etag, frame.size_bytes)
    assert frames_of(bucket)[0].etag == frame.etag
    assert not files(tmp_path / "cache")


def test_a_local_file_replaced_after_its_listing_is_not_read(tmp_path):
    storage.write_bytes(str(tmp_path / "in" / "0.jpg"), b"old")
    (frame,) = frames_of(str(tmp_path / "in"))
    (here,) = download([frame])
    assert here.local_path == frame.uri, "used in place"
    os.utime(frame.uri, ns=(1, 1))
    (outcome,) = download([frame])
    assert outcome.stage == "download"
    assert CHANGED in outcome.reason
    with pytest.raises(NotReadError, match=CHANGED):
        read_image(here)
