"""Pictures inside of archives and recordings: listed, taken out once, found again, or explained."""

import base64
import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from sam2_core.types import AutolabelError
from tasks.dataset.recorded_frames import find_pictures
from tasks.frames.discover import discover, list_frames
from tasks.frames.download import download
from tasks.frames.identity import is_below, relative_address
from tasks.frames.images import load_frame, read_image
from tasks.frames.mcap_pictures import as_png
from tasks.frames.sources import remember_frames
from tasks.frames.video import expand_videos
from tasks.store import storage
from tasks.types import FrameFailure
from tests.frames import recordings
from tests.frames.recordings import T0_NS, jpeg
from tests.frames.sources import good, only, opened, reasons
from tests.sam2_core.test_stamps import MICRO

MEMBERS = [
    ("./CAM_FRONT/1.jpg", jpeg(1)), ("CAM_FRONT/10.jpg", jpeg(2)), ("CAM_BACK/1.jpg", jpeg(3)),
    ("CAM_BACK/1.json", b"{}"), ("other/a#b.jpg", jpeg(4)), ("000.cam_left.jpg", jpeg(5)),
    ("000.cls", b"3"), ("../up.jpg", b"x"), (".hidden.jpg", b"x"),
]  # fmt: skip


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    folder = str(tmp_path / "in")
    return folder if request.param == "local" else request.getfixturevalue("s3") + "/in"


def test_an_archive_is_a_folder_of_its_members(place, tmp_path):
    data = recordings.tar(tmp_path / "made.tar", MEMBERS).read_bytes()
    storage.write_bytes(f"{place}/shard-0001.tar", data)
    found = list(discover([place]))
    assert found == list(discover([f"{place}/shard-0001.tar"]))
    assert {
        one.sequence_id: [(f.camera, f.index, f.uri.split("#")[1]) for f in one.frames]
        for one in found
    } == {
        "shard-0001": [
            ("CAM_BACK", 0, "CAM_BACK/1.jpg"), ("CAM_FRONT", 0, "CAM_FRONT/1.jpg"),
            ("CAM_FRONT", 1, "CAM_FRONT/10.jpg"), ("cam_left", 0, "000.cam_left.jpg"),
        ],
        "shard-0001__other": [("", 0, "other/a")],
    }  # fmt: skip
    for one in found:
        assert list_frames(one) == one.frames
        assert all(is_below(frame.uri, one.frames_uri) for frame in one.frames)
    frames = [frame for one in found for frame in one.frames]
    fetched = download(frames)
    contents = [Path(frame.local_path).read_bytes() for frame in fetched]
    assert contents == [jpeg(seed) for seed in (3, 1, 2, 5, 4)]
    remember_frames(frames)
    pictures = find_pictures(frames)
    assert pictures.paths == {frame.uri: frame.local_path for frame in fetched}
    storage.write_bytes(f"{place}/shard-0001.tar", data + b"\0")
    again = find_pictures(frames)
    assert again.paths == pictures.paths  # copies of what was labeled
    changed = {one.content_key for one in discover([place])}
    assert changed.isdisjoint(one.content_key for one in found)


def test_a_cut_archive_gives_what_is_whole_and_names_the_rest(tmp_path):
    path = recordings.tar(tmp_path / "in" / "a.tar", [(f"{i}.jpg", jpeg(i)) for i in range(3)])
    path.write_bytes(path.read_bytes()[: 512 * 3 + 2 * 6000])
    outcomes = opened(path)
    assert len(good(outcomes)) == len(outcomes) - 1 > 0
    told = r"a\.tar, member .* the archive ends before this member does \(at byte"
    assert re.search(told, reasons(outcomes)[0])
    path.write_bytes(b"no archive" * 100)
    with pytest.raises(AutolabelError, match=r"a\.tar is no plain tar archive"):
        only(path)
    recordings.tar(tmp_path / "in" / "b.tar", [("1.jpg", jpeg(1))])
    broken, whole = (download(one.frames) for one in discover([str(tmp_path / "in")]))
    assert good(whole)
    assert "is no plain tar archive" in reasons(broken)[0]


def test_topics_with_pictures_are_cameras(place, tmp_path):
    data = recordings.drive(tmp_path / "made.mcap").read_bytes()
    storage.write_bytes(f"{place}/drive.mcap", data)
    one = only(place)
    assert one.sequence_id == "drive"
    assert only(f"{place}/drive.mcap") == only(place, format_="mcap") == one
    assert [frame.camera for frame in one.frames] == ["front", "rear"]
    assert list_frames(one) == one.frames
    frames = opened(place)
    assert [(f.camera, f.index) for f in frames] == [
        (c, i) for c in ("front", "rear") for i in range(3)
    ]
    for frame in frames:
        assert frame.timestamp_ns == T0_NS + frame.index * 10**8 - 10**7  # of the header
        assert Path(frame.local_path).read_bytes() == jpeg(frame.index)  # as they were
        assert is_below(frame.uri, one.frames_uri)
    address = relative_address(frames[0].uri, one.frames_uri)
    assert address.endswith("drive.mcap#/sensing/camera/front/image_color/compressed#frame=0")
    assert opened(place) == frames
    assert [frame.index for frame in opened(place, "1:3")] == [1, 2, 1, 2]
    recorded = [replace(frame, local_path="") for frame in frames]
    remember_frames(recorded)
    assert find_pictures(recorded).paths == {f.uri: f.local_path for f in frames}


def test_files_of_a_bag_follow_each_other(tmp_path):
    bag = tmp_path / "night" / "rosbag2"
    recordings.drive(bag / "rosbag2_0.mcap", 2)
    recordings.drive(bag / "rosbag2_1.mcap", 3, first=2)
    (bag / "metadata.yaml").write_text("rosbag2_bagfile_information:\n  storage_identifier: mcap\n")
    one = only(bag)
    assert only(bag.parent) == one
    assert one.sequence_id == "rosbag2"
    assert list_frames(one) == one.frames
    front = [frame for frame in opened(bag) if frame.camera == "front"]
    assert [(frame.index, frame.timestamp_ns) for frame in front] == [
        (i, T0_NS + i * 10**8 - 10**7) for i in range(5)
    ]
    some = [frame for frame in opened(bag, "1:4:2") if frame.camera == "front"]
    assert [frame.uri.rpartition("#")[2] for frame in some] == ["frame=1", "frame=1"]
    (bag / "rosbag2_0.mcap").rename(bag / "x.db3")
    (bag / "rosbag2_1.mcap").unlink()
    with pytest.raises(AutolabelError, match="ros2 bag convert"):
        only(bag)


COLOURS = np.random.default_rng(0).integers(0, 255, (32, 48, 3), np.uint8)


@pytest.mark.parametrize(
    ("encoding", "pixels", "shown"),
    [
        ("bgr8", COLOURS, COLOURS[:, :, ::-1]),
        ("rgb8", COLOURS, COLOURS),
        ("rgba8", np.dstack([COLOURS, COLOURS[:, :, 0]]), COLOURS),
        ("mono8", COLOURS[:, :, 0], np.repeat(COLOURS[:, :, :1], 3, 2)),
        ("mono16", COLOURS[:, :, 0].astype("<u2") * 257, np.repeat(COLOURS[:, :, :1], 3, 2)),
    ],
)
def test_raw_pictures_are_kept_exactly(tmp_path, encoding, pixels, shown):
    fields = recordings.raw(np.ascontiguousarray(pixels), encoding, T0_NS)
    path = recordings.ros2(tmp_path / "a.mcap", [("/cam/image_raw", "raw", fields, T0_NS)])
    (frame,) = opened(path)
    assert frame.local_path.endswith(".png")
    np.testing.assert_array_equal(read_image(frame), shown)


@pytest.mark.parametrize(
    ("encoding", "corner"), [("rggb", 0), ("bggr", 3), ("gbrg", 2), ("grbg", 1)]
)
def test_a_bayer_pattern_begins_with_the_colour_that_it_says(encoding, corner):
    """A red picture as a sensor sees it: light only where the filter is red."""
    from types import SimpleNamespace

    mosaic = np.zeros((16, 16), np.uint8)
    mosaic[corner // 2 :: 2, corner % 2 :: 2] = 200
    message = SimpleNamespace(
        height=16, width=16, step=16, encoding=f"bayer_{encoding}8", data=mosaic.tobytes()
    )
    pixels = cv2.imdecode(np.frombuffer(as_png(message), np.uint8), cv2.IMREAD_COLOR)[4:12, 4:12]
    assert pixels[:, :, 2].mean() > 150
    assert pixels[:, :, :2].max() == 0


def assert_decoded(frames, times_ns):
    """Frames are those of `recordings.packets`."""
    assert [frame.timestamp_ns for frame in frames] == times_ns
    for frame in frames:
        assert abs(float(read_image(frame).mean()) - 30 * frame.index) < 4


def test_video_in_messages_is_decoded_and_a_lost_packet_is_told(tmp_path):
    def written(packets, codec="h264"):
        stamps = [{"sec": T0_NS // 10**9, "nsec": number} for number in range(len(packets))]
        messages = [
            {"timestamp": stamp, "frame_id": "cam", "format": codec,
             "data": base64.b64encode(data).decode()}
            for stamp, data in zip(stamps, packets, strict=True)
        ]  # fmt: skip
        timed = [(one, T0_NS + number) for number, one in enumerate(messages)]
        return recordings.foxglove_json(tmp_path / "a.mcap", "foxglove.CompressedVideo", timed)

    packets = recordings.packets()
    assert_decoded(opened(written(packets)), [T0_NS // 10**9 * 10**9 + n for n in range(6)])
    outcomes = opened(written([packets[0], b"\0\0\0\1\x65garbage", *packets[2:]]))
    assert len(outcomes) == 6
    told = "a.mcap, topic /cam/video, message number 1: this frame of the video"
    assert told in reasons(outcomes)[0]
    (reason,) = reasons(opened(written(packets[:1], "theora")))
    assert "video in 'theora'; known are h265" in reason


def test_messages_in_protobuf_are_those_of_foxglove(tmp_path):
    times_ns = [T0_NS + n for n in range(6)]
    pictures = [(jpeg(n), "jpeg", T0_NS + n) for n in range(3)]
    path = recordings.foxglove_protobuf(tmp_path / "a.mcap", "CompressedImage", pictures)
    frames = opened(path)
    assert [frame.timestamp_ns for frame in frames] == times_ns[:3]
    assert [Path(frame.local_path).read_bytes() for frame in frames] == [p[0] for p in pictures]
    packets = zip(recordings.packets(), ["h264"] * 6, times_ns, strict=True)
    path = recordings.foxglove_protobuf(tmp_path / "b.mcap", "CompressedVideo", packets)
    assert_decoded(opened(path), times_ns)


def test_messages_of_ros1_are_read_without_its_packages(tmp_path):
    counted = recordings.counted
    jpegs = [recordings.jpeg(n) for n in range(2)]
    fields = [(counted(b"jpeg") + counted(data), T0_NS + n) for n, data in enumerate(jpegs)]
    fields.append((counted(b"jpeg") + counted(jpegs[0])[:-9], T0_NS + 2))
    path = recordings.ros1(tmp_path / "a.mcap", "sensor_msgs/CompressedImage", fields)
    first, second, cut = opened(path)
    assert [first.timestamp_ns, second.timestamp_ns] == [T0_NS, T0_NS + 1]
    assert [Path(frame.local_path).read_bytes() for frame in (first, second)] == jpegs
    assert "the message is damaged" in cut.reason
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    size = struct.pack("<II", 4, 5) + counted(b"rgb8") + struct.pack("<BI", 0, 15)
    image = [(size + counted(pixels.tobytes()), T0_NS)]
    path = recordings.ros1(tmp_path / "b.mcap", "sensor_msgs/Image", image)
    (frame,) = opened(path)
    np.testing.assert_array_equal(read_image(frame), pixels)


def test_broken_messages_cost_their_frames_only(tmp_path):
    small = np.zeros((4, 4, 3), np.uint8)
    right = recordings.raw(small, "bgr8", T0_NS)
    text = recordings.compressed(0, T0_NS, b"text")
    fields = [
        right, right | {"data": b"short"}, right | {"encoding": "secret12"},
        right | {"height": 2**31, "width": 2**31}, right | {"height": 0, "width": 0, "data": b""},
        right,
    ]  # fmt: skip
    messages = [("/cam/image_raw", "raw", one, T0_NS + n) for n, one in enumerate(fields)]
    messages.append(("/c2/compressed", "compressed", text, T0_NS))
    outcomes = opened(recordings.ros2(tmp_path / "a.mcap", messages))
    assert [one.index for one in good(outcomes)] == [0, 5]
    for told, reason in zip(
        ["4 bytes, neither JPEG, PNG, WebP, BMP nor TIFF (format 'jpeg')",
         "5 bytes for 4x4 pixels of bgr8 in rows of 12 bytes", "secret12",
         "megapixels, more than", "0 bytes for 0x0 pixels"],
        reasons(outcomes), strict=True,
    ):  # fmt: skip
        assert told in reason


@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_a_cut_recording_gives_what_is_whole_and_names_the_place(tmp_path, keep):
    path = recordings.drive(tmp_path / "in" / "a.mcap", 8, chunk_size=20_000)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    outcomes = opened(path)
    assert len(good(outcomes)) >= 4
    for reason, camera in zip(reasons(outcomes), ("front", "rear"), strict=True):
        assert f"a.mcap, topic /sensing/camera/{camera}/" in reason
        assert "the file is cut or damaged behind its byte" in reason
    assert all(not isinstance(load_frame(frame), FrameFailure) for frame in good(outcomes))
    failures = expand_videos(only(path, "9:12").frames)
    assert [failure.camera for failure in failures] == ["front", "rear"]
    reason = failures[0].reason
    assert "/front/image_color/compressed: the file is cut or damaged behind its" in reason
    assert "--frames 9:12:1 takes none of them" in reason
    assert len(good(opened(path, ":1"))) == 2


def test_a_damaged_chunk_of_a_recording_costs_its_frames(tmp_path):
    path = recordings.drive(tmp_path / "a.mcap", 8, chunk_size=20_000)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    outcomes = opened(path)
    assert len(good(outcomes)) >= 10
    assert any("is damaged" in reason for reason in reasons(outcomes))


def test_recordings_without_pictures_name_their_topics(tmp_path):
    path = recordings.ros2(tmp_path / "a.mcap", [("/speed", "float", {"data": 1.0}, T0_NS)])
    with pytest.raises(AutolabelError, match=r"no topic with pictures, only: /speed \(std_msgs"):
        only(path)
    recordings.drive(tmp_path / "b.mcap")
    alone, other = (one.frames for one in discover([str(tmp_path)]))
    assert "no topic with pictures" in reasons(download(alone))[0]
    assert len(good(expand_videos(other))) == 6
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(AutolabelError, match=r"a\.mcap is no MCAP file"):
        only(path)


@pytest.mark.ci
def test_one_command_labels_and_exports_what_lies_in_containers(tmp_path):
    recordings.drive(tmp_path / "in" / "drive.mcap")
    recordings.tar(tmp_path / "in" / "shard.tar", MEMBERS[:3])
    boxes = str(tmp_path / "boxes")  # by a member's name, and by a message's number
    for name in ("CAM_FRONT/1", "CAM_BACK/1", "front/0", "front/1", "front/50"):
        storage.write_bytes(f"{boxes}/{name}.txt", b"car 0.9 5 5 40 40\n")
    out, target = str(tmp_path / "out"), tmp_path / "coco"
    given = ["label", str(tmp_path / "in"), "--out", out, "--no-dataset", "--json"]
    given += ["--model", str(MICRO), "--frames", ":60", "--overlays", "3", "--boxes", boxes]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    counts = ("sequences", "frames", "failed", "instances")
    assert [summary[name] for name in counts] == [2, 9, [], 4]
    assert summary["imported"]["first_boxes_without_frame"] == ["front/50.txt"]
    assert "frames without boxes: 5 of 9" in done.stderr
    assert sum(Path(path).is_file() for path in summary["overlays"]) == 3
    assert "3 pictures with the labels drawn on, to look at:" in done.stderr
    again = json.loads(CliRunner().invoke(cli, given).stdout)
    assert (again["skipped"], again["imported"]) == (9, summary["imported"])
    given = ["export", out, "--format", "coco", "--to", str(target), "--json"]
    done = CliRunner().invoke(cli, given)
    assert json.loads(done.stdout)["frames_without_picture"] == 0
    assert len(list(target.rglob("*.jpg"))) == 9
    assert (target / "images/drive/front/000000.jpg").read_bytes() == jpeg(0)
