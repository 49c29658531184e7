"""Sources, sequences and frames on every kind of storage."""

import os

import fsspec
import pytest

from sam2_core.types import AutolabelError
from tasks.frames.discover import discover, list_frames
from tasks.store import storage
from tests.frames.sources import anywhere, shape, write

TREE = [
    "drive_a/frame_10.jpg", "drive_a/frame_2.JPG", "drive_a/frame_1.png", "drive_a/notes.txt",
    "drive_a/.hidden.jpg", "drive_a/._frame_1.png", ".cache/x.jpg", "__MACOSX/x.jpg",
    "drive_b/CAM_FRONT/1532402927612460.jpg", "drive_b/CAM_FRONT/1532402927712460.jpg",
    "drive_b/CAM_BACK/1532402927612461.jpg", "drive_b/readme.md",
    "drive-c/images/1.jpg", "clips/night ride.mp4", "drive_b-2/x.jpeg", "deep/er/than/that/1.bmp",
    "rig/cam0.mp4", "rig/cam1.mp4", "b0|c 9/1.jpg",
]  # fmt: skip
EXPECTED = {
    "drive_a": [("", 0, "frame_1.png"), ("", 1, "frame_2.JPG"), ("", 2, "frame_10.jpg")],
    "drive_b": [
        ("CAM_BACK", 0, "1532402927612461.jpg"),
        ("CAM_FRONT", 0, "1532402927612460.jpg"),
        ("CAM_FRONT", 1, "1532402927712460.jpg"),
    ],
    "drive-c": [("", 0, "1.jpg")],
    "clips__night_ride": [("", "video", "night ride.mp4")],
    "drive_b-2": [("", 0, "x.jpeg")],
    "deep__er__than__that": [("", 0, "1.bmp")],
    "b0_c_9": [("", 0, "1.jpg")],
    "rig": [("cam0", "video", "cam0.mp4"), ("cam1", "video", "cam1.mp4")],
}


@pytest.fixture(params=["local", "memory", "s3", "http"])
def tree(request, tmp_path):
    url, write_to = anywhere(request, tmp_path)
    write(write_to, *TREE)
    return url


def test_sequences_and_frames_of_a_tree(tree):
    found = list(discover([tree]))
    assert shape(found) == EXPECTED
    for one in found:
        for frame in one.frames:
            assert frame.etag
            assert frame.size_bytes > 0
            assert fsspec.core.url_to_fs(frame.uri)[0].cat_file(frame.uri)  # the address works
        assert list_frames(one) == one.frames
    front = next(o for o in found if o.sequence_id == "drive_b").frames[1]
    assert front.timestamp_ns == 1532402927612460000


def test_content_keys_change_with_the_content_only(tree, tmp_path):
    first = {one.sequence_id: one.content_key for one in discover([tree])}
    assert first == {one.sequence_id: one.content_key for one in discover([tree])}
    assert len(set(first.values())) == len(first)
    if not tree.startswith("http"):
        storage.write_bytes(storage.join(tree, "drive_a/frame_2.JPG"), b"changed")
        second = {one.sequence_id: one.content_key for one in discover([tree])}
        assert {name for name in first if first[name] != second[name]} == {"drive_a"}


def test_parts_of_a_tree_are_sources_too(tree):
    sources = [f"{tree}/drive_a", f"{tree}/drive_b/", f"{tree}/drive-c/images"]
    names = ["drive_a", "drive_b", "drive-c"]
    assert shape(discover(sources)) == {name: EXPECTED[name] for name in names}
    clip = f"{tree}/clips/night%20ride.mp4" if tree.startswith("http") else None
    clip = clip or f"{tree}/clips/night ride.mp4"
    assert shape(discover([clip])) == {"night_ride": EXPECTED["clips__night_ride"]}
    one = list(discover([f"{tree}/drive-c/images/1.jpg"]))
    assert [len(o.frames) for o in one] == [1]


def test_missing_and_empty_sources_are_clear_errors(tree, tmp_path):
    with pytest.raises(AutolabelError, match=r"nothing-here/?: .*(does not exist|nothing)"):
        list(discover([f"{tree}/nothing-here"]))
    with pytest.raises(AutolabelError, match="does not exist"):
        list(discover([f"{tree}/drive_a/none.mp4"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(AutolabelError, match="no images or videos"):
        list(discover([str(tmp_path / "empty")]))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes.txt").write_text("no picture")
    for name in ("pipe", "notes.txt"):
        with pytest.raises(AutolabelError, match="neither a folder nor a file of a known kind"):
            list(discover([str(tmp_path / name)]))
    with pytest.raises(AutolabelError, match="no source"):
        list(discover([]))


def test_presigned_addresses_are_refused_without_showing_the_secret():
    with pytest.raises(AutolabelError, match="downloaded first") as caught:
        list(discover(["https://h.invalid/clip.mp4?X-Amz-Signature=cafe"]))
    assert "cafe" not in str(caught.value)


@pytest.mark.parametrize("source", ["in", "./in/", "../w/in", "file://in"])
def test_frames_are_called_the_same_however_their_source_is_spelled(tmp_path, monkeypatch, source):
    folder = tmp_path / "w"
    storage.write_bytes(str(folder / "in" / "drive" / "1.jpg"), b"1")
    (there,) = discover([str(folder / "in")])
    monkeypatch.chdir(folder)
    assert list(discover([source])) == [there]
