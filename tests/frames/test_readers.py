"""Sources in the formats of the field: what is found in them, and what is broken in them."""

import json
import shutil
from collections import Counter, defaultdict
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from sam2_core.types import AutolabelError
from tasks.frames import listing
from tasks.frames.discover import discover, list_frames
from tasks.frames.download import download
from tasks.frames.identity import is_below
from tasks.frames.readers import lists, nuscenes
from tasks.store import storage
from tasks.types import FrameFailure
from tests.frames import formats
from tests.frames.sources import only, opened, reasons, write
from tests.sam2_core.test_stamps import MICRO

S = 1_000_000_000
T0_NS = formats.T0_US * 1000
KITTI_NS = 1317042145964389445


def t4(root):
    """T4 is nuScenes with other names of folders, and versions of each dataset."""
    for version in ("0", "1"):
        formats.nuscenes(root / "db_1" / version, ["drive"], "annotation", "data")
    return root


SHAPES = {
    formats.nuscenes: {
        f"scene-{name}": {
            camera: [T0_NS + (number * 20 + moment) * S // 2 for moment in range(2)]
            for camera in ("CAM_BACK", "CAM_FRONT")
        }
        for number, name in enumerate(("0061", "0103"))
    },
    formats.nuimages: {"n003-2018-01-02-11-48-43+0800": {"CAM_FRONT": [T0_NS, T0_NS + S // 2]}},
    t4: {
        "db_1__1__drive": {
            camera: [T0_NS, T0_NS + S // 2] for camera in ("CAM_BACK", "CAM_FRONT")
        }
    },
    formats.kitti_raw: {
        "2011_09_26__2011_09_26_drive_0001_sync": {
            "image_02": [KITTI_NS, KITTI_NS + S], "image_03": [KITTI_NS + S, KITTI_NS + 2 * S],
        }
    },
    formats.kitti_tracking: {
        f"training__{name}": {"image_02": [None, None]} for name in ("0000", "0001")
    },
    formats.cityscapes: {"train__aachen": {"": [None]}, "train__bochum": {"": [None]}},
    formats.coco: {"a": {"": [None, None]}, "b": {"": [None]}},
    formats.parquet: {
        "tunnel__night": {
            "left": [(10**9 - 1) * S, 10**9 * S], "right": [(10**9 - 3) * S, (10**9 - 2) * S],
        }
    },
}  # fmt: skip
EVERY = pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)


def times(found):
    shape = defaultdict(lambda: defaultdict(list))
    for one in found:
        for frame in one.frames:
            times_ns = shape[one.sequence_id][frame.camera]
            assert frame.index == len(times_ns)
            times_ns.append(frame.timestamp_ns)
    return shape


@EVERY
def test_a_source_is_known_by_looking_at_it(make, tmp_path):
    source = str(make(tmp_path / "in"))
    found = list(discover([source]))
    assert times(found) == SHAPES[make]
    for one in found:
        assert list_frames(one) == one.frames  # as a worker finds it
        assert all(is_below(frame.uri, one.frames_uri) for frame in one.frames)
        assert all(frame.etag and frame.size_bytes for frame in one.frames)
    assert not [one for f in found for one in download(f.frames) if isinstance(one, FrameFailure)]


@pytest.mark.parametrize(
    "make", [formats.nuscenes, formats.kitti_raw, formats.coco], ids=lambda make: make.__name__
)
def test_buckets_have_the_same_formats(make, tmp_path, s3):
    path = make(tmp_path / "in")
    for file in (tmp_path / "in").rglob("*"):
        if file.is_file():
            storage.write_bytes(f"{s3}/{file.relative_to(tmp_path)}", file.read_bytes())
    found = list(discover([f"{s3}/{path.relative_to(tmp_path)}"]))
    assert times(found) == SHAPES[make]
    for one in found:
        assert list_frames(one) == one.frames


@pytest.mark.ci
def test_one_command_labels_sources_of_every_format(tmp_path):
    sources = [str(make(tmp_path / make.__name__)) for make in SHAPES]
    out = str(tmp_path / "out")
    given = ["label", "--out", out, "--no-dataset", "--json", "--model", str(MICRO)]
    storage.write_bytes(str(tmp_path / "boxes" / "a" / "0001.txt"), b"car 0.9 5 5 40 40\n")
    given += ["--frames", ":1", "--boxes", str(tmp_path / "boxes")]
    done = CliRunner().invoke(cli, [*given, *sources])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    cameras = sum(len(one) for shape in SHAPES.values() for one in shape.values())
    drives = sum(map(len, SHAPES.values()))
    assert (summary["sequences"], summary["frames"], summary["failed"]) == (drives, cameras, [])
    assert summary["instances"] == 1
    again = CliRunner().invoke(cli, [*given, *sources])
    assert json.loads(again.stdout)["skipped"] == cameras


def test_the_t4_sample_is_read_where_it_lies(shared_data):
    (one,) = discover([str(shared_data / "t4_sample" / "t4dataset")])
    assert one.sequence_id == "minimal_test_scene"
    assert Counter(frame.camera for frame in one.frames) == {"CAM_BACK": 3, "CAM_FRONT": 3}
    assert one.frames[0].timestamp_ns == 1704067200 * S
    assert (one.frames[1].timestamp_ns - one.frames[0].timestamp_ns) == S


def test_broken_rows_cost_their_frames_and_say_which(tmp_path):
    root = formats.nuscenes(tmp_path / "in", ["drive"])
    rows = json.loads((root / "v1.0-mini/sample_data.json").read_text())
    rows[0]["calibrated_sensor_token"] = "nobody"
    rows[1]["sample_token"] = "nobody"
    rows[3]["filename"] = "../elsewhere.jpg"
    (root / rows[4]["filename"]).unlink()
    formats.write_tables(root / "v1.0-mini", {"sample_data": rows})
    outcomes = opened(root)
    texts = reasons(outcomes)
    assert len(outcomes) == len(texts) == 4
    table = "v1.0-mini/sample_data.json, token data-"
    assert sum(text.startswith(table) for text in texts) == 3
    for wrong in ("calibrated_sensor_token nobody", "sample_token nobody", "leads out",
                  f"{rows[4]['filename']}: it does not exist"):  # fmt: skip
        assert any(wrong in text for text in texts), wrong


def test_a_damaged_table_is_named_with_the_place(tmp_path):
    root = formats.nuscenes(tmp_path / "in")
    table = root / "v1.0-mini" / "sample_data.json"
    table.write_text(table.read_text()[:700])
    with pytest.raises(AutolabelError, match=r"sample_data\.json is damaged at its character \d+"):
        list(discover([str(root)]))
    (root / "v1.0-mini" / "sensor.json").unlink()
    with pytest.raises(AutolabelError, match=r"v1\.0-mini lacks sensor\.json: without it"):
        list(discover([str(root)]))
    with pytest.raises(AutolabelError, match="holds no dataset of nuScenes' form"):
        list(discover([str(root / "samples")], format_="nuscenes"))


def test_tables_are_read_once_for_all_sequences_and_again_when_they_change(tmp_path, monkeypatch):
    """A shard lists each of its sequences by its address."""
    root = formats.nuscenes(tmp_path / "in")
    read, rows = [], nuscenes.rows
    monkeypatch.setattr(nuscenes, "rows", lambda uri: (read.append(uri), rows(uri))[1])
    found = list(discover([str(root)]))
    assert [list_frames(one) for one in found] == [one.frames for one in found]
    assert sum(uri.endswith("sample_data.json") for uri in read) == 1
    table = root / "v1.0-mini" / "sample_data.json"
    table.write_text(json.dumps(json.loads(table.read_text())[1:]))
    assert sum(len(one.frames) for one in discover([str(root)])) < sum(len(f.frames) for f in found)


def test_times_that_are_not_all_there_count_for_none(tmp_path, caplog):
    root = formats.kitti_raw(tmp_path / "in")
    drive = next((root / "2011_09_26").iterdir())
    (drive / "image_02" / "timestamps.txt").write_text("2011-09-26 13:02:25.9\n")
    (drive / "image_03" / "timestamps.txt").unlink()
    assert [frame.timestamp_ns for frame in only(root).frames] == [None] * 4
    assert "image_02/timestamps.txt tells no time of 0000000001.png" in caplog.text


def test_a_list_in_json_names_what_is_wrong_in_it(tmp_path):
    path = formats.coco(tmp_path / "in")
    content = json.loads(path.read_text())
    wrong = ["../../secret.jpg", "", "b/gone.jpg", "a/0003.jpg"]
    content["images"] += [{"id": 7 + n, "file_name": name} for n, name in enumerate(wrong)]
    content["images"][-1]["timestamp_ns"] = "x"
    path.write_text(json.dumps(content))
    outcomes = [one for found in discover([str(path)]) for one in download(found.frames)]
    told = reasons(outcomes)
    assert len(told) == 4
    for text in (
        "image number 6: the time 'x' is no whole number", "image number 4: ''",
        "image number 3: '../../secret.jpg' is no path below", "b/gone.jpg: it does not exist",
    ):  # fmt: skip
        assert text in " ".join(told)
    shutil.rmtree(tmp_path / "in" / "images")
    with pytest.raises(AutolabelError, match=r"names 'a/0001\.jpg', which is in none of"):
        list(discover([str(path)]))


def test_a_list_in_parquet_names_what_is_wrong_in_it(tmp_path):
    table = tmp_path / "x.parquet"
    pq.write_table(pa.table({"picture": ["a.jpg"]}), table)
    with pytest.raises(AutolabelError, match=r"has no column uri or path.*it has picture"):
        only(table)
    pq.write_table(pa.table({"path": [None, "../a.jpg"]}), table)
    told = [frame.problem for frame in only(table).frames]
    assert ["'' is no path" in told[0], "'../a.jpg' is no path" in told[1]] == [True, True]
    table.write_bytes(table.read_bytes()[:40])
    with pytest.raises(AutolabelError, match=r"x\.parquet is no Parquet table, or is damaged"):
        only(table)


@pytest.mark.parametrize("folder", ["images", "a"])
def test_an_image_without_a_name_is_a_failure_beside_the_others(tmp_path, folder):
    """It is no sequence of its own, which would be called as the list itself."""
    formats.picture(tmp_path / folder / "0.jpg")
    images = [{"id": 0, "file_name": f"{folder}/0.jpg"}, {"id": 3}, {"id": 4}]
    (tmp_path / "list.json").write_text(json.dumps({"images": images}))
    outcomes = opened(tmp_path / "list.json")
    assert [isinstance(frame, FrameFailure) for frame in outcomes] == [False, True, True]
    assert "image number 1: '' is no path" in outcomes[1].reason


def test_a_compressed_archive_is_refused_as_such(tmp_path):
    (tmp_path / "drives.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(AutolabelError, match=r"gz is compressed, .* only plain \.tar is read"):
        list(discover([str(tmp_path / "drives.tar.gz")]))


def listed_times(tmp_path, kind, times_ns):
    """Frames of a list of a picture for each of these times."""
    names = [f"a/{number}.jpg" for number in range(len(times_ns))]
    for name in names:
        formats.picture(tmp_path / name)
    path = tmp_path / f"list.{kind}"
    if kind == "json":
        rows = zip(names, times_ns, strict=True)
        images = [{"id": name, "file_name": name, "timestamp_ns": t} for name, t in rows]
        path.write_text(json.dumps({"images": images}))
    else:
        pq.write_table(pa.table({"uri": names, "timestamp": times_ns}), path)
    return only(path).frames


@pytest.mark.parametrize("value", ["x", 2**63, -(2**63) - 1, 1e300])
def test_a_time_that_is_none_costs_its_own_frame(tmp_path, value):
    frames = listed_times(tmp_path / "a", "json", [2 * S, value, 9 * S, 4 * S])
    good = [(frame.uri[-5:], frame.timestamp_ns) for frame in frames if not frame.problem]
    assert good == [("0.jpg", 2 * S), ("3.jpg", 4 * S), ("2.jpg", 9 * S)]
    (bad,) = [frame for frame in frames if frame.problem]
    assert bad.problem.endswith(
        f"image number 1: the time {value!r} is no whole number of nanoseconds"
    )


def test_a_time_that_is_missing_leaves_its_camera_without(tmp_path, caplog):
    for kind in ("json", "parquet"):
        frames = listed_times(tmp_path / kind, kind, [2 * S, None, 9 * S])
        assert [(frame.timestamp_ns, frame.problem) for frame in frames] == [(None, "")] * 3
        assert f"{kind}/a/1.jpg is told: its camera has none" in caplog.text
    assert "the time 'x' is" in listed_times(tmp_path / "b", "parquet", ["x"])[0].problem


def test_a_format_that_was_named_is_not_looked_for(tmp_path):
    root = formats.cityscapes(tmp_path / "in")
    plain = times(discover([str(root)], format_="folders"))
    assert set(plain) == {
        f"{kind}__train__{city}" for kind in ("gtFine", "leftImg8bit")
        for city in ("aachen", "bochum")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("format_", "reason"),
    [
        ("auto", r"no plain \.tar and no \.mcap; lists of frames \(\.json, \.parquet\) are"),
        ("kitti-raw", "in is not of --layout kitti-raw: no pictures in image_NN/data"),
        ("kitti-tracking", "in is not of --layout kitti-tracking: no pictures in image_NN/0000"),
        ("cityscapes", "in is not of --layout cityscapes: no pictures in leftImg8bit"),
    ],
)
def test_a_folder_that_is_not_of_a_format_is_told_what_that_has(tmp_path, format_, reason):
    write(tmp_path / "in", "frames.parquet" if format_ == "auto" else "1.jpg")
    with pytest.raises(AutolabelError, match=reason):
        only(tmp_path / "in", format_=format_)


@pytest.mark.parametrize("folder", ["images", "a"])
def test_a_list_may_name_pictures_beside_their_folder(tmp_path, folder):
    names = ["0.jpg", f"{folder}/0.jpg"]
    for name in names:
        formats.picture(tmp_path / name)
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    (tmp_path / "list.json").write_text(json.dumps({"images": images}))
    found = list(discover([str(tmp_path / "list.json")]))
    assert [one.sequence_id for one in found] == ["list", folder]
    assert [list_frames(one) for one in found] == [one.frames for one in found]


def test_pictures_that_a_run_drew_are_no_frames(tmp_path):
    drawn = tmp_path / "out" / "reports" / ("0123456789" * 2) / "overlays"
    write(tmp_path, "in/1.jpg", drawn.relative_to(tmp_path) / "in" / "000000.jpg")
    assert only(tmp_path).sequence_id == "in"
    assert len(only(drawn).frames) == 1, "unless somebody names them"


@pytest.mark.parametrize(("url", "package"), [("gs://b/x", "gcsfs"), ("abfs://b/x", "adlfs")])
def test_a_driver_that_is_not_installed_is_named(url, package):
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(AutolabelError, match=package):
        only(url)


@pytest.mark.parametrize("make", [formats.nuscenes, formats.coco], ids=lambda make: make.__name__)
def test_a_worker_asks_for_the_frames_of_its_own_sequence_alone(make, tmp_path, s3, monkeypatch):
    path = make(tmp_path / "in")
    for file in (tmp_path / "in").rglob("*"):
        if file.is_file():
            storage.write_bytes(f"{s3}/{file.relative_to(tmp_path)}", file.read_bytes())
    found = list(discover([f"{s3}/{path.relative_to(tmp_path)}"]))
    asked, stat_file = [], listing.stat_file
    for module in (lists, nuscenes):
        monkeypatch.setattr(module, "stat_file", lambda uri: asked.append(uri) or stat_file(uri))
    monkeypatch.setattr(nuscenes, "walk", lambda *_: pytest.fail("all of the dataset is listed"))
    for one in found:
        asked.clear()
        assert list_frames(one) == one.frames
        others = {frame.uri for other in found if other is not one for frame in other.frames}
        assert {frame.uri for frame in one.frames} <= set(asked)
        assert len(others & set(asked)) <= 1, "a list may look for the folder of its pictures"
