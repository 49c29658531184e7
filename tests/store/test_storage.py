"""Reading and writing through fsspec: few requests, errors that say what to do, no secrets."""

import http.server
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import fsspec
import pytest

from sam2_core.types import AutolabelError
from tasks.frames.listing import walk
from tasks.store import storage
from tests.conftest import use_s3_endpoint
from tests.faults import FaultyProxy


def test_reading_takes_one_request(s3, s3_endpoint, monkeypatch):
    storage.write_bytes(f"{s3}/x", b"123")
    with FaultyProxy(s3_endpoint) as proxy:
        use_s3_endpoint(monkeypatch, proxy.url)
        assert storage.read_bytes(f"{s3}/x") == b"123"
        storage.write_bytes(f"{s3}/y", b"4")
        assert [method for method, _, _ in proxy.requests] == ["GET", "PUT"]


def test_no_space_names_the_file_and_leaves_nothing(tmp_path):
    """A process that may write 4 KB a file gets the kernel's own error (EFBIG) half-way."""
    code = (
        "import resource, signal, sys\n"
        "from tasks.store import storage\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "storage.write_bytes(sys.argv[1], bytes(100_000))\n"
    )
    target = tmp_path / "x.parquet"
    result = subprocess.run(
        [sys.executable, "-c", code, str(target)], check=False, capture_output=True, text=True
    )
    assert f"StorageError: cannot write {target}" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_called_by_its_name():
    with (
        pytest.raises(storage.StorageError, match=r"write /out/x: no space left; free some"),
        storage.explained("write", "/out/x"),
        Path("/dev/full").open("wb") as file,
    ):
        file.write(b"x")


def test_no_permission_is_told():
    with (
        pytest.raises(AutolabelError, match="access denied"),
        storage.explained("write", "/out/x"),
    ):
        raise PermissionError(13, "Permission denied")


def test_a_missing_bucket_is_an_error(s3):
    uri = "s3://no-such-bucket-here/x"
    for use in (partial(storage.write_bytes, data=b"1"), storage.read_bytes, storage.list_names):
        with pytest.raises(AutolabelError, match=r"-here/x: its bucket does not exist"):
            use(uri)
    with pytest.raises(storage.NotFoundError, match="/x: it does not exist"):
        storage.read_bytes(f"{s3}/x")
    assert storage.list_names(s3 + "/nothing") == {}


def test_what_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AutolabelError, match=r"cannot write .*/file/x"):
        storage.write_bytes(str(tmp_path / "file" / "x"), b"")
    with pytest.raises(AutolabelError, match="cannot open foo://x"):
        storage.read_bytes("foo://x")


def test_filesystems_never_serve_old_listings(s3):
    assert storage.list_names(s3) == {}
    fsspec.filesystem("s3", skip_instance_cache=True).pipe_file(f"{s3}/a", b"123")
    assert storage.list_names(s3) == {"a": 3}


def test_web_servers_with_an_ipv6_address_are_reached(tmp_path):
    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6

    (tmp_path / "x").write_bytes(b"123")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    try:
        server = Server(("::1", 0), handler)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://[::1]:{server.server_port}"
        try:
            assert storage.read_bytes(f"{address}/x") == b"123"
            assert [files[0].name for _, files in walk(address)] == ["x"]
        finally:
            server.shutdown()


@pytest.mark.parametrize("seconds", ["abc", "0", "-1", "nan"])
def test_a_time_that_is_none_is_told(seconds, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_STORAGE_TIMEOUT_S", seconds)
    with pytest.raises(AutolabelError, match="expected whole seconds above 0"):
        storage.filesystem("https://host.invalid/x")
