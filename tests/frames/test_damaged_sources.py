"""Damaged sources: what, where, and only what is broken is lost."""

import base64
import gzip
import json
import os
import resource
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sam2_core.types import AutolabelError
from tasks.frames.discover import discover, list_frames
from tasks.frames.download import download
from tasks.frames.video import expand_videos
from tests.frames import formats, recordings
from tests.frames.recordings import T0_NS, jpeg
from tests.frames.sources import good, only, opened, passed_over, reasons


def test_names_in_an_archive_that_lead_out_of_it_are_told(tmp_path):
    members = [("/etc/x.jpg", jpeg(0)), ("a/../../up.jpg", jpeg(1)), ("s/b\udcff.jpg", jpeg(2))]
    path = recordings.tar(tmp_path / "a.tar", members)
    one = only(path)
    assert one.sequence_id == "a__etc", "below the archive, as tar itself does"
    assert len(good(download(one.frames))) == 1
    told = r"2 names that no file can have (a/../../up.jpg, s/b\udcff.jpg)"
    assert passed_over(path) == told
    recordings.tar(path, members[1:])
    with pytest.raises(AutolabelError, match="holds no pictures; passed over: 2 names that no"):
        list(discover([str(path)]))


def test_a_compressed_archive_under_the_name_of_a_plain_one_is_told(tmp_path):
    path = recordings.tar(tmp_path / "a.tar", [("1.jpg", jpeg(0))])
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(AutolabelError, match=r"compressed: unpack it first"):
        list(discover([str(path)]))


def test_several_pictures_of_one_key_are_a_frame_each(tmp_path):
    path = recordings.tar(tmp_path / "a.tar", [("0.jpg", jpeg(0)), ("0.png", jpeg(1))])
    assert len(only(path).frames) == 2


def test_a_damaged_header_in_an_archive_is_a_failed_frame_behind_the_others(tmp_path):
    members = [(f"CAM_FRONT/153240292760{i}.jpg", jpeg(i)) for i in range(3)]
    path = recordings.tar(tmp_path / "a.tar", [*members, ("other/1.jpg", jpeg(7))])
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as file:
        place = file.getmembers()[2].offset
    data[place + 148] = ord("9")  # of the header's checksum
    path.write_bytes(data)
    one = only(path)
    assert list_frames(one) == one.frames
    outcomes = download(one.frames)
    assert [frame.index for frame in good(outcomes)] == [0, 1]
    assert all(frame.timestamp_ns for frame in good(outcomes)), "the others keep their times"
    (reason,) = reasons(outcomes)
    assert f"a.tar is damaged behind its byte {place}: " in reason


@pytest.mark.parametrize("kind", ["cut in a text", "whole"])
def test_an_archive_that_ends_in_a_text_says_so(tmp_path, kind):
    path = recordings.tar(tmp_path / "a.tar", [("1.jpg", jpeg(0)), ("1.txt", b"a" * 5000)])
    with tarfile.open(path) as file:
        cut = file.getmembers()[1].offset_data + 1000
    if kind != "whole":
        path.write_bytes(path.read_bytes()[:cut])
    assert len(reasons(opened(path))) == (kind != "whole")


@pytest.mark.parametrize("value", [10**30, float("inf"), None, "soon"])
def test_a_wild_timestamp_of_a_dataset_costs_its_own_frame(tmp_path, value):
    root = formats.nuscenes(tmp_path / "in", ["drive"])
    table = root / "v1.0-mini" / "sample_data.json"
    formats.change_table(table, lambda rows: rows[0].update(timestamp=value))
    outcomes = opened(root)
    assert len(good(outcomes)) == 3
    assert "is no time" in reasons(outcomes)[0]


def test_rows_that_come_twice_are_one_and_what_is_no_row_is_damage(tmp_path):
    root = formats.nuscenes(tmp_path / "in", ["drive"])
    table = root / "v1.0-mini" / "sample_data.json"
    rows = json.loads(table.read_text())
    table.write_text(json.dumps([*rows, *rows]))
    assert len(only(root).frames) == 4
    table.write_text(json.dumps([*rows, 3, *rows]))
    with pytest.raises(AutolabelError, match=r"sample_data\.json: a row is no object: 3"):
        only(root)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (b"[]", r"v1\.0-mini: no picture .* to a row of scene\.json"),
        ("[]".encode("utf-16"), r"scene\.json is damaged at its character 0"),
    ],
)
def test_tables_that_lead_nowhere_or_are_no_text_say_so(tmp_path, table, reason):
    root = formats.nuscenes(tmp_path / "in", ["drive"])
    (root / "v1.0-mini" / "scene.json").write_bytes(table)
    with pytest.raises(AutolabelError, match=reason):
        only(root)


def test_scenes_of_one_name_are_sequences_each(tmp_path, caplog):
    root = formats.nuscenes(tmp_path / "in")
    scenes = root / "v1.0-mini" / "scene.json"
    formats.change_table(scenes, lambda rows: [row.update(name="one") for row in rows])
    found = {one.sequence_id: one for one in discover([str(root)])}
    assert sorted(found) == ["one-token-scene-0061", "one-token-scene-0103"]
    assert all(list_frames(one) == one.frames for one in found.values())
    assert "several scenes are called one" in caplog.text


def test_lists_without_a_frame_and_paths_as_bytes(tmp_path):
    table = tmp_path / "x.parquet"
    pq.write_table(pa.table({"uri": pa.array([], pa.string())}), table)
    with pytest.raises(AutolabelError, match=r"x\.parquet lists not a single frame"):
        only(table)
    path = formats.picture(tmp_path / "é.jpg")
    for uris in (["é.jpg".encode()], [f"file://{path}", str(path), "é.jpg"]):
        pq.write_table(pa.table({"uri": uris}), table)
        assert len(good(opened(table))) == 1, "one picture, named in three ways"
    (tmp_path / "x.json").write_text('{"images": [{"id": 1}]}')
    with pytest.raises(AutolabelError, match=r"x\.json has 1 image and no `file_name`"):
        only(tmp_path / "x.json")


def test_what_is_no_file_costs_itself(tmp_path):
    formats.picture(tmp_path / "in" / "1.jpg")
    (tmp_path / "in" / "2.jpg").symlink_to(tmp_path / "in" / "2.jpg")
    (tmp_path / "in" / "3.jpg").symlink_to("/nowhere/3.jpg")
    os.mkfifo(tmp_path / "in" / "4.jpg")
    one = only(tmp_path / "in")
    assert [frame.index for frame in one.frames] == [0]
    assert passed_over(tmp_path / "in").startswith("3 dangling links, pipes, sockets or devices (")


def test_a_file_of_a_bag_that_is_gone_is_told(tmp_path, caplog):
    recordings.drive(tmp_path / "bag" / "b_0.mcap", 1)
    metadata = tmp_path / "bag" / "metadata.yaml"
    metadata.write_text(
        "rosbag2_bagfile_information:\n  relative_file_paths: [b_0.mcap, b_1.mcap]\n"
    )
    assert len(good(opened(tmp_path / "bag"))) == 2
    assert "metadata.yaml names b_1.mcap, not there" in caplog.text
    metadata.write_text("rosbag2: [")
    assert list(discover([str(tmp_path / "bag")]))


def test_a_stamp_that_is_no_time_gives_way_to_when_it_was_written(tmp_path):
    data = base64.b64encode(jpeg(0)).decode()
    stamp = {"sec": 10**30, "nsec": 0}
    fields = {"timestamp": stamp, "frame_id": "c", "format": "jpeg", "data": data}
    path = recordings.foxglove_json(
        tmp_path / "a.mcap", "foxglove.CompressedImage", [(fields, T0_NS), (fields, 2**64 - 1)]
    )
    assert [frame.timestamp_ns for frame in opened(path)] == [T0_NS, 2**63 - 1]


def test_a_recording_whose_end_leads_nowhere_is_read_from_its_beginning(tmp_path):
    path = recordings.drive(tmp_path / "a.mcap")
    data = bytearray(path.read_bytes())
    data[-28:-20] = struct.pack("<Q", 2**60)  # where its summary begins
    path.write_bytes(data)
    assert len(good(opened(path))) == 6


def test_a_recording_of_which_no_chunk_opens_says_why(tmp_path):
    path = recordings.drive(tmp_path / "a.mcap")
    path.write_bytes(path.read_bytes().replace(b"\x04\x00\x00\x00zstd", b"\x04\x00\x00\x00zstX"))
    one = only(path)
    told = [failure.reason for failure in expand_videos(one.frames)]
    assert len(told) == 2
    assert all("compressed can be read: the part of the file before its" in one for one in told)


@pytest.mark.parametrize(
    ("rows", "letters", "reason"),
    [
        (3_000_000, 1, "3000000 rows, more than 2000000"),
        pytest.param(1_000_000, 2_000, "unfolds to more than 512 MiB", marks=pytest.mark.ci),
        (40, 30_000_000, "unfolds to more than 512 MiB"),
    ],
)
def test_a_small_table_that_unfolds_to_gigabytes_is_refused(tmp_path, rows, letters, reason):
    names = pa.array(["x" * letters + ".jpg"])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), names)
    pq.write_table(pa.table({"uri": column}), tmp_path / "list.parquet", compression="zstd")
    assert (tmp_path / "list.parquet").stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AutolabelError, match=reason):
        list(discover([str(tmp_path / "list.parquet")]))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000  # KiB
