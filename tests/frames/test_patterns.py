"""Sources as patterns and as pictures one by one; labels among frames are refused."""

import pytest

from sam2_core.types import AutolabelError
from tasks.frames.discover import discover, refuse_output_inside
from tasks.frames.identity import frame_key
from tasks.store import storage
from tests.frames.sources import anywhere, shape, write

TREE = ["a/1.jpg", "a/2.jpg", "a/10.jpg", "b/1.jpg", "b/notes.txt", "rig/CAM_FRONT/1.jpg",
        "rig/CAM_BACK/1.jpg", "empty/readme.md", "clip.mp4", "notes.txt"]  # fmt: skip


@pytest.fixture(params=["local", "memory", "s3", "http"])
def tree(request, tmp_path):
    url, write_to = anywhere(request, tmp_path)
    write(write_to, *TREE)
    return url


def found(*sources, **options):
    every = shape(discover([str(source) for source in sources], **options))
    return {name: [(camera, file) for camera, _, file in frames] for name, frames in every.items()}


def test_patterns_fit_folders_pictures_and_videos(tree):
    assert found(f"{tree}/[ab]") == {
        "a": [("", "1.jpg"), ("", "2.jpg"), ("", "10.jpg")],
        "b": [("", "1.jpg")],
    }
    assert set(found(f"{tree}/*")) == {"a", "b", "rig", "clip"}  # and nothing of what is no footage
    assert found(f"{tree}/a/1*.jpg") == {"a": [("", "1.jpg"), ("", "10.jpg")]}
    assert found(f"{tree}/rig/*/1.jpg") == {"rig": [("CAM_BACK", "1.jpg"), ("CAM_FRONT", "1.jpg")]}
    with pytest.raises(AutolabelError, match="fits no folder, picture or video"):
        found(f"{tree}/nothing*")
    with pytest.raises(AutolabelError, match="holds no images or videos"):
        found(f"{tree}/empt*")


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_what_fits_a_pattern_is_called_from_its_first_wildcard_on(kind, memory, tmp_path):
    """So that nights do not become one sequence, whichever of them are there already."""
    tree = memory if kind == "memory" else str(tmp_path)
    for night in ("01", "02"):
        write(tree, f"drives/{night}/CAM_FRONT/1.jpg", f"clips/{night}/rear.mp4")
    assert set(found(f"{tree}/drives/0?/CAM_FRONT")) == {"01__CAM_FRONT", "02__CAM_FRONT"}
    assert set(found(f"{tree}/drives/*1/CAM_FRONT/")) == {"01__CAM_FRONT"}
    assert set(found(f"{tree}/clips/*/rear.mp4")) == {"01__rear", "02__rear"}
    assert set(found(f"{tree}/driv*")) == {"drives__01", "drives__02"}
    assert set(found(f"{tree}/clips/**/01")) == {"01"}, "nothing says where folders begin"


def test_pictures_one_by_one_are_the_sequences_of_their_folders(tree):
    named = [f"{tree}/a/2.jpg", f"{tree}/b/1.jpg", f"{tree}/a/1.jpg"]
    assert found(*named) == {"a": [("", "1.jpg"), ("", "2.jpg")], "b": [("", "1.jpg")]}
    (only,) = discover([f"{tree}/a/1.jpg"])
    assert (only.sequence_id, only.picked) == ("a", True)
    (some,) = discover(named[::2])
    assert (some.frames_uri, some.picked) == (f"{tree}/a", True)
    (whole,) = discover([f"{tree}/a"])
    identities = {frame_key(frame, whole.frames_uri) for frame in whole.frames}
    assert {frame_key(frame, some.frames_uri) for frame in some.frames} < identities
    with pytest.raises(AutolabelError, match="does not exist"):
        found(f"{tree}/a/1.jpg", f"{tree}/a/3.jpg")
    with pytest.raises(AutolabelError, match="is inside source"):
        found(f"{tree}/a", f"{tree}/a/1.jpg")


def test_pictures_beside_cameras_are_refused(tmp_path):
    write(tmp_path, "CAM_FRONT/1.jpg", "CAM_FRONT/2.jpg", "1.jpg")
    with pytest.raises(AutolabelError, match="and camera folders"):
        found(tmp_path / "1.jpg", tmp_path / "CAM_FRONT" / "1.jpg")


def test_the_one_sequence_is_called_as_told(tmp_path):
    write(tmp_path, "a/1.jpg", "b/1.jpg")
    (one,) = discover([str(tmp_path / "a")], name="monday")
    assert one.sequence_id == one.frames[0].sequence_id == "monday"
    assert one.content_key == next(iter(discover([str(tmp_path / "a")]))).content_key
    with pytest.raises(AutolabelError, match=r"--sequence monday names one .*/a and .*/b"):
        found(tmp_path, name="monday")
    with pytest.raises(AutolabelError, match="call it 'day_1', say"):
        found(tmp_path / "a", name="day 1")


def test_a_name_with_brackets_is_no_pattern(tmp_path):
    storage.write_bytes(str(tmp_path / "drive [1]" / "1.jpg"), b"x")
    assert set(found(tmp_path / "drive [1]")) == {"drive__1_"}


@pytest.mark.parametrize(
    ("out", "source", "words"),
    [
        ("drives", "drives", "is the source"),
        ("drives/", "./drives", "is the source"),
        ("drives/a/labels", "drives", "is inside the source"),
        ("link/labels", "drives", "is inside the source"),
        ("drives/labels", "drives/*", "is the source"),
        ("drives/labels/x", "drives/*", "is inside the source"),
        ("s3://bucket/in/out", "s3://bucket/in/", "is inside the source"),
        ("s3://bucket/out", "s3://bucket", "is inside the source"),
        ("labels", "/", "is inside the source"),
        ("drives-labels", "drives", ""),
        ("drives", "drives/a", ""),
        ("s3://bucket/in-labels", "s3://bucket/in", ""),
        ("labels", "drives/*.jpg", ""),
        ("drives/labels", "drives/a.mp4", ""),
    ],
)
def test_labels_among_frames_are_refused(tmp_path, monkeypatch, out, source, words):
    (tmp_path / "drives").mkdir()
    (tmp_path / "link").symlink_to("drives")
    monkeypatch.chdir(tmp_path)
    if not words:
        refuse_output_inside(out, [source])
        return
    with pytest.raises(AutolabelError, match=words):
        refuse_output_inside(out, ["elsewhere", source])
