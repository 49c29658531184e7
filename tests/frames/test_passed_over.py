"""What is not read of a source is counted by what it is, on every kind of storage alike."""

import fsspec
import pytest

from tasks.frames.download import download
from tasks.passed_over import PassedOver, passed_over_json, passed_over_lines
from tests.frames import formats
from tests.frames.recordings import drive, jpeg, tar
from tests.frames.sources import anywhere, good, ids, only, passed_over, reasons, write


@pytest.mark.parametrize("place", ["local", "s3", "http"], indirect=True)
def test_folders_of_a_nas_and_recycle_bins_are_no_footage(place):
    address, root = place
    write(root, "drive/1.jpg", "drive/@eaDir/1.jpg/SYNO_M.jpg", "drive/@eaDir/2.jpg/SYNO_M.jpg")
    write(root, "#recycle/drive/3.jpg", "$RECYCLE.BIN/S-1/R1.jpg", "lost+found/7.mp4")
    write(root, ".thumbs/1.jpg", "drive/._1.jpg", "drive/.DS_Store")
    assert ids(address) == ["drive"]
    told = passed_over(address)
    assert "4 folders of a NAS or recycle bin (" in told
    assert "1 hidden folder (.thumbs)" in told
    assert "1 hidden file (._1.jpg)" in told


@pytest.fixture
def place(request, tmp_path):
    return anywhere(request, tmp_path)


def test_what_looks_like_footage_and_is_not_read_is_counted(tmp_path):
    write(tmp_path, "d/1.jpg", "d/1.jpg.json", "d/2.heic", "d/3.avi.part", "d/4.mp4.crdownload")
    write(tmp_path, "d/5.mcap.zst", "d/6.bag", "d/7.tar.gz", "d/8.zip", "d/9.txt.gz", "d/notes.txt")
    write(tmp_path, "d/10.360", "d/clip")
    (tmp_path / "e").mkdir()
    assert passed_over(tmp_path) == (
        "2 archives that are not read (.tar.gz, .zip), "
        "1 empty folder (e), "
        "3 files of other kinds (.360, .gz, clip), "
        "1 file that looks like a picture (.heic), "
        "2 files that look like video (.avi.part, .mp4.crdownload), "
        "2 recordings that are not read (.bag, .mcap.zst)"
    )


def test_members_of_an_archive_are_counted_like_files(tmp_path):
    names = (
        "d/1.jpg",
        "d/@eaDir/1.jpg/M.jpg",
        "@eaDir/2.jpg/M.jpg",
        "d/@eaDir/2.jpg/M.jpg",
        "e/@eaDir/M.jpg",
    )
    path = tar(tmp_path / "a.tar", [(name, jpeg(0)) for name in (*names, "d/2.mp4", "d/3.heic")])
    assert passed_over(path) == (
        "1 file that looks like a picture (.heic), 3 folders of a NAS or recycle bin (@eaDir), "
        "1 video or recording in an archive (d/2.mp4)"
    )


def test_keys_with_empty_names_are_counted_and_the_rest_is_labeled(s3):
    client = fsspec.filesystem("s3")
    for key in ("in/d/1.jpg", "in//2.jpg", "in/d//3.jpg"):
        client.call_s3("put_object", Bucket=s3[5:], Key=key, Body=b"x")
    assert ids(f"{s3}/in") == ["d"]
    assert passed_over(f"{s3}/in") == "2 names that no file can have (/2.jpg, d//3.jpg)"


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_an_archived_object_is_to_be_restored(s3, storage_class):
    client, body = fsspec.filesystem("s3"), jpeg(0)
    put = {"Bucket": s3[5:], "Body": body}
    client.call_s3("put_object", Key="d/1.jpg", StorageClass=storage_class, **put)
    client.call_s3("put_object", Key="d/2.jpg", **put)
    outcomes = download(only(f"{s3}/d").frames)
    assert len(good(outcomes)) == 1
    assert "d/1.jpg: archived: restore it first" in reasons(outcomes)[0]


def test_rows_that_are_not_valid_are_no_frames(tmp_path):
    root = formats.nuscenes(tmp_path / "t4", ["scene-1"], tables="annotation", data="data")

    def invalid(rows):
        for number, row in enumerate(one for one in rows if "CAM_FRONT" in one["filename"]):
            row["is_valid"] = number > 0

    whole = len(only(root).frames)
    formats.change_table(root / "annotation" / "sample_data.json", invalid)
    assert len(only(root).frames) == whole - 1
    told = "1 picture with is_valid false"
    assert passed_over(root) == passed_over(root) == told, "when its tables are known, too"


def test_older_versions_and_absent_sweeps_are_counted(tmp_path):
    for version in ("0", "1", "2"):
        root = tmp_path / "all" / "id" / version
        formats.nuscenes(root, ["scene-1"], tables="annotation", data="data")
    folder = root / "annotation"

    def sweep(rows):
        rows.append(rows[0] | {"is_key_frame": False, "filename": "data/CAM_BACK/gone.jpg"})

    formats.change_table(folder / "sample_data.json", sweep)
    assert passed_over(tmp_path / "all") == (
        "2 older versions of datasets (0, 1), 1 sweep that is not there (data/CAM_BACK/gone.jpg)"
    )


def test_a_pattern_tells_what_fits_it_and_is_not_read(tmp_path):
    write(tmp_path, "a.mp4", "b.lrv", "c.ts.part", "notes.txt", "@eaDir/x.jpg")
    assert passed_over(f"{tmp_path}/*") == (
        "2 files that look like video (.lrv, .ts.part), 1 folder of a NAS or recycle bin (@eaDir)"
    )


@pytest.mark.parametrize("format_", ["kitti-raw", "kitti-tracking", "rosbag2"])
def test_footage_that_a_format_has_no_place_for_is_counted(tmp_path, format_):
    if format_ == "rosbag2":
        drive(tmp_path / "bag_0.mcap")
        write(tmp_path, "metadata.yaml", "1.jpg")
    else:
        make = formats.kitti_raw if format_ == "kitti-raw" else formats.kitti_tracking
        make(tmp_path)
    write(tmp_path, "extra/1.jpg", "extra/clip.mp4", "extra/2.heic")
    told = passed_over(tmp_path)
    assert "1 file that looks like a picture (.heic)" in told
    assert "files of footage outside the format (" in told


def test_a_pattern_tells_which_folders_hold_nothing(tmp_path):
    write(tmp_path, "a/1.jpg", "b/notes.txt")
    (tmp_path / "c").mkdir()
    found = passed_over(f"{tmp_path}/*")
    assert "2 folders without pictures or videos (b, c)" in found


def test_a_line_has_no_line_break_of_a_name_and_few_examples():
    one = PassedOver("here")
    for name in "a\nb", "c", "d", "e", "c":
        one.add("crowd", example=name)
    one.add("box", "boxes", count=2)
    text = r"here: passed over: 2 boxes, 5 crowds (a\nb, c, d, ...)"
    assert list(passed_over_lines([one, PassedOver("there")])) == [text]
    assert passed_over_json([one])[1]["examples"] == ["a\nb", "c", "d"]
