"""What names of frames and folders say: order, time, camera."""

import os
from pathlib import Path

import pytest

from sam2_core.types import Boxes
from tasks.frames.discover import discover
from tasks.frames.identity import is_camera_name, timestamp_ns, timestamps_ns
from tasks.frames.listing import natural_key
from tasks.store import quarantine, storage
from tasks.store.artifacts import RunStamp, chunks_of, write_labels
from tasks.store.manifests import (
    ChunkRecord,
    Manifest,
    complete_keys,
    list_manifests,
    write_manifest,
)
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure
from tests.frames.sources import ids, passed_over, write

FAILURE = FrameFailure("", "", 0, "", "decode", "damaged")


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("1532402927", 1532402927_000000000),
        ("1532402927612", 1532402927_612000000),
        ("1532402927612460", 1532402927_612460000),
        ("15569195938415230", 1556919593_841523000),
        ("1532402927612460123", 1532402927_612460123),
        ("1532402927.612460000", 1532402927_612460000),
        ("1532402927.5", 1532402927_500000000),
        ("1532402927_612460000", 1532402927_612460000),
        (
            "n015-2018-07-24-11-22-45+0800__CAM_FRONT__1532402927612460",
            1532402927_612460000,
        ),
        ("2018-07-24-11-22-45", 1532431365_000000000),
        ("20180724_112245_123", 1532431365_123000000),
        ("20180724112245123", 1532431365_123000000),
        ("frame_000123", None),
        ("0000000012", None),
        ("00107", None),
        ("000000397133", None),
        ("2018-13-45-99-99-99", None),
        ("", None),
    ],
)
def test_timestamps_in_file_names(stem, expected):
    assert timestamp_ns(stem) == expected


def test_a_date_that_all_frames_share_is_no_timestamp():
    assert timestamps_ns(["2018-07-24-11-22-45_0001", "2018-07-24-11-22-45_0002"]) == [None, None]
    assert timestamps_ns(["1532402927", "cover"]) == [None, None]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("CAM_FRONT,cam_a,CAM B,CAMERA_05,camera0,cam_2,FRONT_LEFT,ring_side_left,image_02,front,"
         "CamFrontLeft,rgb_left", True),
        ("scene_01,images,rgb,left_turn_07,camp,0001,image_2024,drive,,A,image_a,cam-ü,"
         "camera_of_anna", False),
    ],
)  # fmt: skip
def test_camera_names(names, expected):
    assert [one for one in names.split(",") if is_camera_name(one) != expected] == []


def test_a_camera_beside_a_sequence_is_told(tmp_path, caplog):
    write(tmp_path, "d/cam1/1.jpg", "d/A/1.jpg", "e/front/1.jpg", "e/rear/1.jpg", "f/A/1.jpg")
    found = [one.sequence_id for one in discover([str(tmp_path)])]
    assert sorted(found) == ["d", "d__A", "e", "f__A"]
    (told,) = [one.getMessage() for one in caplog.records]
    assert "/d: cam1 is a camera by its name, and A beside it a sequence of its own" in told


def test_natural_order():
    names = ["f10.jpg", "f9.jpg", "f1.jpg", "F2.jpg", "10.jpg", "9.jpg", "f01.jpg"]
    expected = ["9.jpg", "10.jpg", "F2.jpg", "f01.jpg", "f1.jpg", "f9.jpg", "f10.jpg"]
    assert sorted(names, key=natural_key) == expected


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_long_names_are_shortened_when_they_are_found(request, tmp_path, kind):
    """Each folder's name is within the limits of a disk, what is made of them is not."""
    root = str(tmp_path / "in") if kind == "local" else request.getfixturevalue("s3")
    folder = "/".join(["ä" * 100, "b" * 200, "c" * 200])
    write(root, *(f"{folder}/{last}/CAM_{'FRONT_' * 40}1/1.jpg" for last in "12"))
    names = ids(root)
    assert len(set(names)) == 2
    for one in discover([root]):
        assert one.sequence_id in names
        assert one.sequence_id.startswith("ä" * 50)
        (chunk,) = chunks_of(one.frames, "r" * 20)
        out, case = storage.join(root, "out"), (one.sequence_id, one.content_key)
        labeled = [LabeledFrame(f, Boxes.empty(), failure=FAILURE) for f in chunk.frames]
        stamp = RunStamp("detector")
        write_labels(out, chunk, labeled, stamp)
        record = ChunkRecord.of(chunk, labeled)
        write_manifest(out, Manifest(case[0], one.frames_uri, case[1], stamp, (record,)))
        assert case in complete_keys(list_manifests(out, stamp.run_key))
        quarantine.begin(quarantine.Case(out, stamp.run_key, *case), 0)


def test_names_that_no_table_can_hold_are_ignored_and_told(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"x")
    Path(os.fsdecode(bytes(tmp_path) + b"/2\xff.jpg")).write_bytes(b"x")
    assert len(next(discover([str(tmp_path)])).frames) == 1
    assert passed_over(tmp_path) == r"1 name that no file can have (2\udcff.jpg)"
