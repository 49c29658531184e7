"""What a frame is: its address in its sequence and its version, however it is spelled."""

from dataclasses import replace
from pathlib import Path

import pytest

from tasks.frames.discover import discover
from tasks.frames.identity import file_version, frame_key, is_below, relative_address
from tasks.frames.listing import stat_file
from tasks.types import FrameRef


@pytest.mark.parametrize(
    ("uri", "root", "address"),
    [
        ("/in/drive/CAM/1.jpg", "/in/drive", "CAM/1.jpg"),
        ("file:///in/drive/1.jpg", "/in/drive/", "1.jpg"),
        ("s3://b/drive/1.jpg", "s3a://b/drive", "1.jpg"),
        ("http://host/my%20drive/1.jpg", "http://host/my drive", "1.jpg"),
        ("memory:///a/1.jpg", "memory://a", "1.jpg"),
        ("s3://b/drive.mp4#frame=7", "s3://b/drive.mp4", "drive.mp4#frame=7"),
        ("s3://b/drive/cam.mp4#frame=7", "s3://b/drive", "cam.mp4#frame=7"),
        ("/in/one.jpg", "/in/one.jpg", "one.jpg"),
        ("/elsewhere/1.jpg", "/in/drive", "/elsewhere/1.jpg"),
        ("/in/drive2/1.jpg", "/in/drive", "/in/drive2/1.jpg"),
    ],
)
def test_addresses_are_below_the_sequence(uri: str, root: str, address: str) -> None:
    assert relative_address(uri, root) == address
    assert is_below(uri, root) == (address != uri)
    assert not is_below(f"{root}/../1.jpg", root), "a way up"


def test_a_place_says_nothing_and_a_version_does() -> None:
    frame = FrameRef("drive", "", 3, None, "/in/drive/a.jpg", etag="e1", size_bytes=7)
    same = frame_key(replace(frame, index=9, local_path="/x"), "/in/drive")
    assert frame_key(frame, "/in/drive") == same == "drive/a.jpg@e1"
    moved = replace(frame, uri="s3://bucket/drive/a.jpg")
    assert frame_key(moved, "s3://bucket/drive") == same, "another place, same frame"
    assert frame_key(replace(frame, etag="e2"), "/in/drive") != same
    assert frame_key(replace(frame, etag=""), "/in/drive").endswith("@size-7")


def test_versions_of_local_files_are_those_of_listings(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive" / "1.jpg").write_bytes(b"x")
    ((frame,),) = (one.frames for one in discover([str(tmp_path / "drive")]))
    assert file_version(Path(frame.uri)) == frame.etag
    assert file_version(tmp_path / "none") is None


def test_one_object_and_a_listing_tell_the_same_version(s3: str) -> None:
    """A frame is fetched for its labels only when it is still what was listed."""
    import s3fs

    s3fs.S3FileSystem().pipe(f"{s3}/drive/1.jpg", b"x")
    ((frame,),) = (one.frames for one in discover([f"{s3}/drive"]))
    found = stat_file(frame.uri)
    assert found is not None
    assert (found.etag, found.size_bytes) == (frame.etag, frame.size_bytes)
