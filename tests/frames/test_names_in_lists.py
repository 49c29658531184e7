"""Names as other systems write them: UTF-16, marks split off letters, backslashes, links."""

import io
import json
import tarfile
import unicodedata
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sam2_core.types import AutolabelError
from tasks.frames.discover import list_frames
from tasks.frames.download import download
from tests.frames import formats
from tests.frames.recordings import jpeg
from tests.frames.sources import good, only, passed_over

WHOLE, SPLIT = (partial(unicodedata.normalize, form) for form in ("NFC", "NFD"))
NAME = "Übung/größe_é.jpg"


@pytest.mark.parametrize("ways", [(WHOLE, SPLIT), (SPLIT, WHOLE), (WHOLE, WHOLE)])
@pytest.mark.parametrize("kind", ["coco", "parquet"])
def test_letters_with_marks_are_found_however_they_are_written(tmp_path, ways, kind):
    on_disk, in_list = ways
    formats.picture(tmp_path / on_disk(NAME))
    path = tmp_path / f"list.{'json' if kind == 'coco' else kind}"
    if kind == "coco":
        path.write_text(json.dumps({"images": [{"file_name": in_list(NAME).replace("/", "\\")}]}))
    else:
        pq.write_table(pa.table({"path": [in_list(NAME)]}), path)
    found = only(path)
    assert list_frames(found) == found.frames
    assert len(good(download(found.frames))) == 1
    assert found.frames[0].uri == f"{tmp_path}/{on_disk(NAME)}", "as the disk spells it"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_times_may_be_written_in_utf_16(tmp_path, encoding):
    root = formats.kitti_raw(tmp_path)
    texts = list(tmp_path.rglob("timestamps.txt"))
    before = [frame.timestamp_ns for frame in only(root).frames]
    for text in texts:
        text.write_bytes(("\ufeff" + text.read_text().replace("\n", "\r\n")).encode(encoding))
    assert [frame.timestamp_ns for frame in only(root).frames] == before
    assert texts
    assert None not in before


@pytest.mark.parametrize(
    ("unit", "each_s"), [("seconds", 1), ("milliseconds", 1e3), ("microseconds", 1e6)]
)
def test_times_in_another_unit_than_nanoseconds_are_refused(tmp_path, unit, each_s):
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    times = [int(1_715_000_000 * each_s)]
    pq.write_table(pa.table({"uri": ["a.jpg"], "timestamp_ns": times}), tmp_path / "list.parquet")
    with pytest.raises(AutolabelError, match=f"are {unit} since 1970, it seems: give them in nano"):
        only(tmp_path / "list.parquet")


def linked(path, members):
    """An archive of (name, bytes or what it leads to, kind)."""
    with tarfile.open(path, "w") as file:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                file.addfile(info)
    return path


def test_links_in_an_archive_are_the_pictures_that_they_lead_to(tmp_path):
    path = linked(tmp_path / "a.tar", [
        ("./d/3.jpg", "1.jpg", tarfile.SYMTYPE),  # before what it leads to
        ("./d/1.jpg", jpeg(1), tarfile.REGTYPE),
        ("./d/2.jpg", "./d/1.jpg", tarfile.LNKTYPE),
        ("./d/4.jpg", "../d/./1.jpg", tarfile.SYMTYPE),
        ("./d/5.jpg", "3.jpg", tarfile.SYMTYPE),
        ("./d/6.jpg", "/etc/passwd", tarfile.SYMTYPE),
        ("./d/7.jpg", "d/8.jpg", tarfile.LNKTYPE),
    ])  # fmt: skip
    found = only(path)
    assert list_frames(found) == found.frames
    frames = good(download(found.frames))
    assert [frame.uri.rpartition("#at=")[0][-5:] for frame in frames] == [
        f"{number}.jpg" for number in (1, 2, 3, 4, 5)
    ]
    contents = {Path(frame.local_path).read_bytes() for frame in frames}
    assert contents == {jpeg(1)}
    assert passed_over(path) == "2 links in an archive to no picture of it (d/6.jpg, d/7.jpg)"
