"""What is not read of a source is counted by what it is, on every kind of storage alike."""

import pytest

from tasks.passed_over import PassedOver, passed_over_json, passed_over_lines
from tests.frames.recordings import jpeg, tar
from tests.frames.sources import anywhere, ids, passed_over, write


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
    (tmp_path / "e").mkdir()
    assert passed_over(tmp_path) == (
        "2 archives that are not read (.tar.gz, .zip), "
        "1 empty folder (e), "
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
