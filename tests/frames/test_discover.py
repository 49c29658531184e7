"""Sources, sequences and frames on every kind of storage."""

import contextlib
import functools
import http.server
import os
import threading
from pathlib import Path

import fsspec
import pytest

from sam2_core.types import AutolabelError, Boxes
from tasks.frames.discover import discover, list_frames
from tasks.frames.listing import natural_key, walk
from tasks.frames.source_names import is_camera_name, safe_name
from tasks.frames.timestamps import timestamp_ns, timestamps_ns
from tasks.store import quarantine, storage
from tasks.store.artifacts import RunStamp, chunks_of, write_labels
from tasks.store.manifests import ChunkRecord, Manifest, list_complete, write_manifest
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameSelection, NothingToLabelError

FAILURE = FrameFailure("", "", 0, "", "decode", "damaged")
TREE = [
    "drive_a/frame_10.jpg", "drive_a/frame_2.JPG", "drive_a/frame_1.png", "drive_a/notes.txt",
    "drive_a/.hidden.jpg", "drive_a/._frame_1.png", ".cache/x.jpg", "__MACOSX/x.jpg",
    "drive_b/CAM_FRONT/1532402927612460.jpg", "drive_b/CAM_FRONT/1532402927712460.jpg",
    "drive_b/CAM_BACK/1532402927612461.jpg", "drive_b/readme.md",
    "drive-c/images/1.jpg", "clips/night ride.mp4", "drive_b-2/x.jpeg", "deep/er/than/that/1.bmp",
    "rig/cam0.mp4", "rig/cam1.mp4",
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
    "rig": [("cam0", "video", "cam0.mp4"), ("cam1", "video", "cam1.mp4")],
}


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(folder):
    """Index pages and files of a folder over HTTP on a free port."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def http_folder(tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    with serve(folder) as url:
        yield folder, url


@pytest.fixture(params=["local", "memory", "s3", "http"])
def tree(request, tmp_path):
    if request.param == "http":
        folder, url = request.getfixturevalue("http_folder")
        write_to = str(folder)
    elif request.param == "local":
        url = write_to = str(tmp_path / "tree")
    else:
        url = write_to = request.getfixturevalue(request.param) + "/tree"
    for path in TREE:
        storage.write_bytes(storage.join(write_to, path), path.encode())
    return url


def shape(found):
    return {
        one.sequence.sequence_id: [
            (f.camera, getattr(f, "index", "video"), f.uri.replace("%20", " ").rsplit("/", 1)[-1])
            for f in one.frames
        ]
        for one in found
    }


def test_sequences_and_frames_of_a_tree(tree):
    found = list(discover([tree]))
    assert shape(found) == EXPECTED
    for one in found:
        for frame in one.frames:
            assert frame.etag
            assert frame.size_bytes > 0
            assert fsspec.core.url_to_fs(frame.uri)[0].cat_file(frame.uri)  # the address works
        assert list_frames(one.sequence) == list(one.frames)
    front = next(o for o in found if o.sequence.sequence_id == "drive_b").frames[1]
    assert front.timestamp_ns == 1532402927612460000


def test_content_keys_change_with_the_content_only(tree, tmp_path):
    first = {one.sequence.sequence_id: one.content_key for one in discover([tree])}
    assert first == {one.sequence.sequence_id: one.content_key for one in discover([tree])}
    assert len(set(first.values())) == len(first)
    if not tree.startswith("http"):
        storage.write_bytes(storage.join(tree, "drive_a/frame_2.JPG"), b"changed")
        second = {one.sequence.sequence_id: one.content_key for one in discover([tree])}
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
    with pytest.raises(AutolabelError, match="no source"):
        list(discover([]))


def test_links_are_followed_unless_they_lead_up(tmp_path):
    storage.write_bytes(str(tmp_path / "far" / "1.jpg"), b"x")
    storage.write_bytes(str(tmp_path / "tree" / "here" / "1.jpg"), b"x")
    (tmp_path / "tree" / "there").symlink_to(tmp_path / "far")
    (tmp_path / "tree" / "here" / "loop").symlink_to(tmp_path / "tree")
    (tmp_path / "tree" / "here" / "dangling.jpg").symlink_to(tmp_path / "none.jpg")
    assert list(shape(discover([str(tmp_path / "tree")]))) == ["here", "there"]


def write(root, *paths):
    for path in paths:
        storage.write_bytes(storage.join(str(root), path), path.encode())


def ids(*sources):
    return [one.sequence.sequence_id for one in discover([str(source) for source in sources])]


def test_links_between_siblings_end_and_every_real_folder_comes_once(tmp_path):
    tree = tmp_path / "tree"
    write(tree, *(f"d{number}/{number}.jpg" for number in range(12)))
    write(tree, ".store/s/1.jpg")
    write(tmp_path, "far/a/1.jpg", "far/b/1.jpg")
    for here in range(12):
        for there in range(12):
            (tree / f"d{here}" / f"to{there}").symlink_to(tree / f"d{there}")
    (tree / "a-latest").symlink_to("d7")  # sorts before what it leads to
    (tree / "stored").symlink_to(".store/s")
    (tree / "one").symlink_to(tmp_path / "far" / "a")
    (tree / "two").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "back").symlink_to(tree)
    found = list(discover([str(tree)]))
    assert sorted(one.sequence.sequence_id for one in found) == sorted(
        [*(f"d{number}" for number in range(12)), "one", "stored", "two__b"]
    )
    for one in found:  # alone, as in its shard
        assert list_frames(one.sequence) == list(one.frames)


def test_a_camera_that_is_a_link_into_the_source_is_refused(tmp_path):
    write(tmp_path, "raw/CAM_FRONT/1.jpg", "drive/CAM_BACK/1.jpg")
    (tmp_path / "drive" / "CAM_FRONT").symlink_to(tmp_path / "raw" / "CAM_FRONT")
    with pytest.raises(AutolabelError, match=r"drive/CAM_FRONT and .*raw/CAM_FRONT are one folder"):
        ids(tmp_path)
    (one,) = discover([str(tmp_path / "drive")])
    assert {frame.camera for frame in one.frames} == {"CAM_FRONT", "CAM_BACK"}
    (tmp_path / "drive" / "CAM_LEFT").symlink_to("CAM_BACK")
    assert len(ids(tmp_path / "drive")) == 1


def test_folders_of_a_server_that_never_end_are_an_error(http_folder):
    folder, url = http_folder
    write(folder, "d/1.jpg")
    (folder / "d" / "again").symlink_to(folder / "d")
    with pytest.raises(AutolabelError, match="without end"):
        ids(url)


@pytest.mark.parametrize("kind", ["local", "s3"])
@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (["d/CAM FRONT/1.jpg", "d/CAM_FRONT/1.jpg"], "two cameras are both called CAM_FRONT"),
        (["d/cam0/1.jpg", "d/cam0.mp4"], "two cameras are both called cam0"),
        (["d/cam0/1.jpg", "d/map.png"], r"/d holds images \(map.png\) and camera folders \(cam0\)"),
        (["d/cam0/1.jpg", "d/cam0/cam1/1.jpg"], r"/cam0 holds images .* camera folders \(cam1\)"),
        (["d/1.jpg", "d/images/1.jpg"], "called d: .*/d/images and .*/d; rename one"),
        (["d/clip.mp4", "d/clip/1.jpg"], "called d__clip: .*; rename one"),
        (["a b/1.jpg", "a_b/1.jpg"], "called a_b: .*; rename one"),
    ],
)
def test_folders_that_can_be_read_in_two_ways_are_refused(request, tmp_path, kind, paths, reason):
    root = str(tmp_path) if kind == "local" else request.getfixturevalue("s3")
    write(root, *paths)
    with pytest.raises(AutolabelError, match=reason):
        ids(root)


def test_a_source_named_twice_comes_once_and_one_in_another_is_refused(tmp_path, s3):
    for root in (str(tmp_path / "in"), f"{s3}/in"):
        write(root, "a/1.jpg", "a-b/1.jpg")
        assert ids(f"{root}/a", f"{root}/a/", f"{root}/a-b", f"{root}/a") == ["a", "a-b"]
        for pair in ((root, f"{root}/a"), (f"{root}/a/1.jpg", f"{root}/a-b", root + "/")):
            with pytest.raises(AutolabelError, match=r"is inside source .*/in.*labeled twice"):
                ids(*pair)
    (tmp_path / "link").symlink_to(tmp_path / "in" / "a")
    assert ids(tmp_path / "in/a", tmp_path / "link") == ["a"]


def test_two_sources_that_a_link_joins_are_refused(tmp_path):
    write(tmp_path, "a/x/1.jpg", "b/y/1.jpg", "b/z/1.jpg", "c/clip.mp4", "d/other.mp4")
    assert ids(tmp_path / "a", tmp_path / "b") == ["x", "y", "z"]
    (tmp_path / "a" / "link").symlink_to("../b/z")
    for pair in ((tmp_path / "a", tmp_path / "b"), (tmp_path / "b", tmp_path / "a")):
        with pytest.raises(AutolabelError, match=r"/b/z is part of source .* by a link: .* twice"):
            ids(*pair)
    assert len(ids(tmp_path / "c" / "clip.mp4", tmp_path / "d" / "other.mp4")) == 2
    (tmp_path / "c" / "again.mp4").symlink_to("../d/other.mp4")
    with pytest.raises(AutolabelError, match=r"other.mp4 is part of source"):
        ids(tmp_path / "c", tmp_path / "d")


def test_long_names_are_shortened_when_they_are_found(tmp_path, s3):
    """Each folder's name is within the limits of a disk, what is made of them is not."""
    names = ["ä" * 100, "b" * 200, "c" * 200]
    for root in (str(tmp_path / "in"), f"{s3}/in"):
        for last in ("1", "2"):
            write(root, "/".join([*names, last, "CAM_" + "FRONT_" * 40 + "1", "1.jpg"]))
        found = list(discover([root]))
        assert len({one.sequence.sequence_id for one in found}) == 2
        assert [one.sequence.sequence_id for one in found] == ids(root)
        for one in found:
            assert one.sequence.sequence_id.startswith("ä" * 50)
            (chunk,) = chunks_of(one.frames, "r" * 20)
            out, case = storage.join(root, "out"), (one.sequence.sequence_id, one.content_key)
            labeled = [LabeledFrame(f, Boxes.empty(), failure=FAILURE) for f in chunk.frames]
            stamp = RunStamp("detector")
            write_labels(out, chunk, labeled, stamp)
            record = ChunkRecord.of(chunk, labeled)
            manifest = Manifest(case[0], one.sequence.frames_uri, case[1], stamp, (record,))
            write_manifest(out, manifest)
            assert case in list_complete(out, stamp.run_key)
            quarantine.begin(quarantine.Case(out, stamp.run_key, *case), 0)


def test_names_that_no_table_can_hold_are_ignored_and_told(tmp_path, caplog):
    (tmp_path / "1.jpg").write_bytes(b"x")
    Path(os.fsdecode(bytes(tmp_path) + b"/2\xff.jpg")).write_bytes(b"x")
    assert len(next(discover([str(tmp_path)])).frames) == 1
    assert "is not UTF-8" in caplog.text


def test_presigned_addresses_are_refused_without_showing_the_secret():
    with pytest.raises(AutolabelError, match="downloaded first") as caught:
        list(discover(["https://h.invalid/clip.mp4?X-Amz-Signature=cafe"]))
    assert "cafe" not in str(caught.value)


def test_two_sequences_of_one_name_are_refused(tmp_path):
    for path in ("a/drive/1.jpg", "b/drive/1.jpg"):
        storage.write_bytes(str(tmp_path / path), b"x")
    with pytest.raises(AutolabelError, match=r"both called drive: .*a/drive and .*b/drive"):
        list(discover([str(tmp_path / "a"), str(tmp_path / "b")]))
    both = [one.sequence.sequence_id for one in discover([str(tmp_path)])]
    assert both == ["a__drive", "b__drive"]


def test_selection_keeps_the_numbers_of_the_source(tmp_path):
    for index in range(10):
        storage.write_bytes(str(tmp_path / f"{index}.jpg"), b"x")
    selected = next(discover([str(tmp_path)], FrameSelection.parse("2:9:3")))
    assert [frame.index for frame in selected.frames] == [2, 5, 8]
    assert selected.content_key != next(discover([str(tmp_path)])).content_key
    with pytest.raises(NothingToLabelError, match="--frames 50::1 takes no frame"):
        list(discover([str(tmp_path)], FrameSelection.parse("50:")))


@pytest.mark.parametrize(
    ("text", "indices"),
    [(":", [0, 1, 2, 3, 4]), ("::2", [0, 2, 4]), ("3:", [3, 4]), (":2", [0, 1]), ("1:4:2", [1, 3])],
)
def test_selections(text, indices):
    selection = FrameSelection.parse(text)
    assert [i for i in range(5) if i in selection] == indices
    assert FrameSelection.parse(str(selection)) == selection


@pytest.mark.parametrize("text", ["", "5", "a:b", "::0", "-1:", "1:2:3:4"])
def test_wrong_selections_are_refused(text):
    with pytest.raises(AutolabelError, match=r"START:STOP:STEP|STEP must be"):
        FrameSelection.parse(text)


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
    "name",
    ["CAM_FRONT", "CAMERA_05", "camera0", "cam_2", "FRONT_LEFT", "ring_side_left", "image_02",
     "front", "CamFrontLeft", "rgb_left"],
)  # fmt: skip
def test_camera_names(name):
    assert is_camera_name(name)


@pytest.mark.parametrize(
    "name", ["scene_01", "images", "rgb", "left_turn_07", "camp", "0001", "image_2024", "drive", ""]
)
def test_names_that_are_no_cameras(name):
    assert not is_camera_name(name)


def test_natural_order():
    names = ["f10.jpg", "f9.jpg", "f1.jpg", "F2.jpg", "10.jpg", "9.jpg", "f01.jpg"]
    expected = ["9.jpg", "10.jpg", "F2.jpg", "f01.jpg", "f1.jpg", "f9.jpg", "f10.jpg"]
    assert sorted(names, key=natural_key) == expected


def test_names_that_lead_out_of_the_folder_are_ignored(s3, caplog):
    client = fsspec.filesystem("s3")
    for key in ("in/../../evil.jpg", "in/..\\evil.jpg", "in/./x/good.jpg", "in/ok/1.jpg"):
        client.call_s3("put_object", Bucket=s3[5:], Key=key, Body=b"x")
    found = shape(discover([f"{s3}/in"]))
    assert found == {"ok": [("", 0, "1.jpg")]}
    assert "not a file name" in caplog.text
    assert safe_name("../a b/ä?.x") == "__a_b__ä_.x"
    assert "/" not in safe_name("a/b/../c")


def test_an_index_page_leads_nowhere_else(http_folder):
    folder, url = http_folder
    links = ["../up.jpg", "%2e%2e/x.jpg", "http://127.0.0.1:9/other.jpg", "/root.jpg", "a.jpg"]
    page = "".join(f'<a href="{link}">x</a>' for link in links)
    (folder / "d").mkdir()
    (folder / "d" / "index.html").write_text(page)
    (folder / "d" / "a.jpg").write_text("x")
    (folder / "root.jpg").write_text("x")
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
    assert calls == ["list_objects_v2"] * 2


@pytest.mark.parametrize("levels", ["{0:03d}", "day/{1:d}/{0:03d}", "a", ""])
def test_a_large_prefix_is_listed_in_parts_and_comes_in_order(s3, monkeypatch, levels):
    from moto.s3.models import s3_backends

    from tasks.frames import listing_s3

    backend, keys = s3_backends["123456789012"]["aws"], []
    for index in range(2600):
        folder = f"d/{levels.format(index // 20, index // 1300)}".rstrip("/")
        keys.append(f"{folder}/{index:05d}é.jpg")
    keys += ["d/0.txt", "d/zz/last.jpg", "d/zz", "e/not-below.jpg"]
    for key in keys:
        backend.put_object(s3[5:], key, b"x")
    monkeypatch.setattr(listing_s3, "FIRST_PAGES", 1)
    monkeypatch.setattr(listing_s3, "PART_OBJECTS", 200)
    asked = []
    part = listing_s3.Prefix.part
    monkeypatch.setattr(listing_s3.Prefix, "part", lambda *a: asked.append(a[1:]) or part(*a))
    found = list(listing_s3.list_objects(fsspec.filesystem("s3"), s3[5:], "d/"))
    assert [one.key for one in found] == sorted(key for key in keys if key.startswith("d/"))
    assert all(one.size_bytes == 1 and one.etag for one in found)
    assert (len(asked) > 5) == ("{0" in levels), "only folders can be listed side by side"


@pytest.mark.parametrize("source", ["in", "./in/", "../w/in", "file://in"])
def test_frames_are_called_the_same_however_their_source_is_spelled(tmp_path, monkeypatch, source):
    folder = tmp_path / "w"
    storage.write_bytes(str(folder / "in" / "drive" / "1.jpg"), b"1")
    (there,) = discover([str(folder / "in")])
    monkeypatch.chdir(folder)
    assert list(discover([source])) == [there]
