"""Listings of buckets and web servers: few requests, and nothing outside the source."""

import fsspec
import pytest

from sam2_core.types import AutolabelError
from tasks.frames.discover import discover
from tasks.frames.identity import safe_name
from tasks.frames.listing import walk
from tests.frames.sources import ids, passed_over, shape, write


def test_folders_of_a_server_that_never_end_are_an_error(http_folder):
    folder, url = http_folder
    write(folder, "d/1.jpg")
    (folder / "d" / "again").symlink_to(folder / "d")
    with pytest.raises(AutolabelError, match="without end"):
        ids(url)


def test_names_that_lead_out_of_the_folder_are_ignored(s3):
    client = fsspec.filesystem("s3")
    for key in ("in/../../evil.jpg", "in/..\\evil.jpg", "in/./x/good.jpg", "in/ok/1.jpg"):
        client.call_s3("put_object", Bucket=s3[5:], Key=key, Body=b"x")
    found = shape(discover([f"{s3}/in"]))
    assert found == {"ok": [("", 0, "1.jpg")]}
    assert passed_over(f"{s3}/in").startswith("3 names that no file can have (")
    assert safe_name("../a b/ä?.x") == "__a_b__ä_.x"
    assert "/" not in safe_name("a/b/../c")


def test_an_index_page_leads_nowhere_else(http_folder):
    folder, url = http_folder
    links = ["../up.jpg", "%2e%2e/x.jpg", "http://127.0.0.1:9/other.jpg", "/root.jpg", "a.jpg"]
    write(folder, "d/a.jpg", "root.jpg")
    page = "".join(f'<a href="{link}">x</a>' for link in links)
    (folder / "d" / "index.html").write_text(page)
    assert [file.uri for _, files in walk(f"{url}/d") for file in files] == [f"{url}/d/a.jpg"]


def test_many_objects_take_one_request_a_thousand(s3, monkeypatch):
    from moto.s3.models import s3_backends
    from s3fs import S3FileSystem

    for index in range(1200):  # straight into the server: 10 s over HTTP
        backend = s3_backends["123456789012"]["aws"]
        backend.put_object(s3[5:], f"d/s{index // 50:02d}/{index % 50:02d}.jpg", b"x")

    calls = []
    original = S3FileSystem.call_s3
    monkeypatch.setattr(
        S3FileSystem, "call_s3", lambda *a, **k: calls.append(a[1]) or original(*a, **k)
    )
    assert [len(one.frames) for one in discover([f"{s3}/d"])] == [50] * 24
    # Before that one look at the folder and one at the first in it, to tell the format.
    assert calls == ["list_objects_v2"] * (2 + 2)


def test_objects_of_a_prefix_come_in_the_order_of_their_keys(s3):
    from moto.s3.models import s3_backends

    backend = s3_backends["123456789012"]["aws"]
    keys = [f"d/{index // 20:03d}/{index:05d}é.jpg" for index in range(1300)]
    for key in [*keys, "d/0.txt", "d/zz/last.jpg", "d/zz", "e/not-below.jpg"]:
        backend.put_object(s3[5:], key, b"x")
    found = [file for _, files in walk(f"{s3}/d") for file in files]
    assert [file.uri for file in found][:1300] == [f"{s3}/{key}" for key in sorted(keys)]
    assert {file.name for file in found[1300:]} == {"0.txt", "last.jpg", "zz"}
    assert all(file.size_bytes == 1 and file.etag for file in found)
