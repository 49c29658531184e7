"""Which labels an export takes, where it writes, and what it says of what it leaves out."""

import hashlib
import json

import cv2
import numpy as np
import pytest
import s3fs
from click.testing import CliRunner

from flows.cli import export as named
from flows.cli.main import cli
from sam2_core.types import AutolabelError
from tasks.export.run import FORMATS, Choice, chosen_manifests, export, split_of
from tasks.export.types import Classes, ExportNotes, Sink
from tasks.store import storage
from tasks.store.tracks import FrameTracks, write_tracks
from tests.conftest import REPOSITORY
from tests.export.labeled_runs import NOTHING, export_frame, run_of, truth
from tests.review.labels import labeled_frames


def test_what_is_chosen_and_what_is_left_out_is_told(tmp_path):
    source = run_of(tmp_path)
    choice = Choice(classes=("car", "human"), class_map={"person": "human"}, min_score=0.6)
    report = export(source, "coco", str(tmp_path / "to"), choice, images="none")
    rows = [row for frame in truth(tmp_path) for row in frame]
    wanted = [row for row in rows if row[0] in {"car", "person"}]
    kept = [row for row in wanted if row[1] >= 0.6]
    assert report["instances"] == len(kept)
    assert report["classes"] == ["car", "human"]
    assert report["left_out"] == {
        "class not asked for": len(rows) - len(wanted), "score too low": len(wanted) - len(kept),
    }  # fmt: skip
    risky = export(source, "coco", str(tmp_path / "r"), Choice(risk_below=0.5), images="none")
    assert 0 < risky["left_out"]["risk too high"] == 30 - risky["instances"]
    written = json.loads((tmp_path / "r/annotations/instances.json").read_text())["annotations"]
    assert max(one["attributes"]["risk"] for one in written) < 0.5


def test_command_and_page_name_every_format_and_the_file_that_a_tool_opens(tmp_path):
    assert list(FORMATS) == list(named.FORMATS)
    page = (REPOSITORY / "docs/EXPORT.md").read_text()
    assert not [name for name in FORMATS if f"\n| `{name}`" not in page]
    for name, file in named.OPENED.items():
        export(run_of(tmp_path / name), name, str(tmp_path / name / "to"), NOTHING)
        assert (tmp_path / name / "to" / file.format("")).is_file(), name


def test_an_export_into_the_labels_is_refused(tmp_path):
    source = run_of(tmp_path)
    with pytest.raises(AutolabelError, match=r"--to .* is inside .*later runs and exports read"):
        export(source, "coco", f"{source}/labels/coco", Choice(), images="none")


def test_what_cannot_be_read_is_left_out_and_the_rest_is_exported(tmp_path):
    source = run_of(tmp_path, ("cut", "drive", "old"), frames=2)
    paths = {path.name.partition("@")[0]: path for path in (tmp_path / "run").rglob("*@*.json")}
    paths["cut"].write_bytes(paths["cut"].read_bytes()[:-40])
    old = json.loads(paths["old"].read_bytes()) | {"labeled_by": "0.0.9", "sha256": "of its own"}
    old["stamp"]["format_version"] = 1
    paths["old"].write_text(json.dumps(old))
    given = ["export", source, "--format", "coco", "--pictures", "none", "--json", "--to"]
    done = CliRunner().invoke(cli, [*given, str(tmp_path / "to")])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["sequences"], report["frames"]) == (1, 1, 2)
    why = report["sequences_unreadable"]
    assert "truncated or damaged" in why["cut"]
    assert why["old"] == "labeled by 0.0.9, which this version cannot read: label again"
    assert "left out: sequence old: labeled by 0.0.9" in done.stderr
    assert json.loads((tmp_path / "to/export.json").read_text())["sequences_unreadable"] == [*why]
    paths["drive"].unlink()
    done = CliRunner().invoke(cli, [*given, str(tmp_path / "nothing")])
    assert isinstance(done.exception, AutolabelError), "nothing can be read"


def test_a_damaged_table_withdraws_its_sequence_so_that_the_next_run_makes_it_again(tmp_path):
    source = run_of(tmp_path, frames=2)
    (masks,) = (tmp_path / "run").rglob("*.masks.parquet")
    masks.write_bytes(masks.read_bytes()[:-1] + b"!")
    with pytest.raises(AutolabelError, match="drive counts as not labeled: run again"):
        export(source, "coco", str(tmp_path / "to"), Choice(), images="none")
    assert not list((tmp_path / "run" / "manifests").rglob("drive@*.json"))


def test_decisions_of_a_dataset_that_is_gone_are_not_left_out_in_silence(
    database, tmp_path, monkeypatch
):
    run_of(tmp_path, frames=2)
    events = tmp_path / "run" / "reviews" / "run" / "events"
    events.mkdir(parents=True)
    (events / "0.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AutolabelError, match="autolabel review rebuild run --out run"):
        export("run", "coco", "to", Choice(), images="none")
    assert export("./run", "coco", "to", Choice(), images="none")["frames"] == 2


def test_classes_are_those_of_tracks_if_asked(tmp_path):

    source = run_of(tmp_path, frames=2)
    (manifest,) = chosen_manifests(source)
    tracks = [
        (one.frame, FrameTracks(np.arange(5, dtype=np.int64), ("bus",) * 5))
        for one in labeled_frames(2, 5, sequence_id="drive")
    ]
    write_tracks(source, manifest, tracks, {"settings": {}})
    for choice, classes in ((NOTHING, None), (Choice(track_classes=True), ["bus"])):
        report = export(source, "coco", str(tmp_path / str(classes)), choice, images="none")
        found = {label for frame in truth(tmp_path, frames=2) for label, _, _ in frame}
        assert set(report["classes"]) == set(classes or found)


def test_the_index_has_every_file_with_its_hash_and_equal_exports_are_equal(tmp_path, s3):
    source = run_of(tmp_path)
    for target in (str(tmp_path / "to"), f"{s3}/to"):
        export(source, "yolo", target, NOTHING)
    index = json.loads((tmp_path / "to" / "export.json").read_text())
    store = s3fs.S3FileSystem()
    there = {path for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert len(there) == len(index["files"]) + 1 == 14
    for one in index["files"]:
        data = (tmp_path / "to" / one["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (one["bytes"], one["sha256"])
        assert store.cat_file(f"{s3}/to/{one['path']}".removeprefix("s3://")) == data
    copy = json.loads(store.cat_file(f"{s3}/to/export.json".removeprefix("s3://")))
    assert copy == index


def test_pictures_are_linked_or_told_to_be_gone(tmp_path):
    source = run_of(tmp_path)
    (tmp_path / "in/drive/000002.jpg").unlink()
    (tmp_path / "in/drive/000004.jpg").write_bytes(b"another one")
    report = export(source, "coco", str(tmp_path / "to"), NOTHING, images="link")
    assert report["frames_without_picture"] == 1
    assert report["left_out"] == {"frame whose picture has changed since": 1}
    links = sorted((tmp_path / "to/images/drive").iterdir())
    assert [link.name for link in links] == [f"{i:06d}.jpg" for i in (0, 1, 3, 5)]
    assert all(
        link.is_symlink() and link.resolve().parent == tmp_path / "in/drive" for link in links
    )


@pytest.mark.parametrize("format_", ["yolo", "davis"])
def test_cameras_whose_flat_names_are_equal_keep_their_files(tmp_path, format_):
    """Sequence `x` with camera `front`, and sequence `x__front`."""
    frames = [
        export_frame(sequence, camera, "a.jpg", image=tmp_path / "a.jpg")
        for sequence, camera in (("x", "front"), ("x__front", ""))
    ]
    cv2.imwrite(str(tmp_path / "a.jpg"), np.zeros((72, 128, 3), np.uint8))
    with Sink(str(tmp_path / "to")) as sink:
        writer = FORMATS[format_](sink, Classes(()), ExportNotes())
        for frame in frames:
            writer.add(frame)
        facts = writer.close()
        sink.close({"format": format_})
    assert facts["sequence_names"] == {"x__front": "x/front", "x__front-2": "x__front"}
    assert len([*(tmp_path / "to").rglob("*.jpg")]) == 2
    paths = [one["path"] for one in json.loads((tmp_path / "to/export.json").read_text())["files"]]
    assert len(paths) == len({*paths})


def test_links_are_for_pictures_that_stay_and_folders_of_this_machine(tmp_path, own_cache):
    for name in ("cache/a.jpg", "mine/a.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"x")
    with Sink(str(tmp_path / "to"), "link") as sink:
        sink.image("a.jpg", tmp_path / "cache" / "a.jpg")
        sink.image("b.jpg", tmp_path / "mine" / "a.jpg")
        sink.close({})
    links = [(tmp_path / "to" / name).is_symlink() for name in ("a.jpg", "b.jpg")]
    assert links == [False, True]
    with pytest.raises(AutolabelError, match="links to pictures need a folder of this machine"):
        Sink("memory://x", "link")


def test_classes_that_no_label_has_are_told(tmp_path):
    given = ["export", run_of(tmp_path, frames=1), "--format", "coco", "--pictures", "none", "--to"]
    for code, name, option in ((1, "tram", ["--classes", "tram"]),
                               (0, "tank", ["--class-map", "tank=car"])):  # fmt: skip
        done = CliRunner().invoke(cli, [*given, str(tmp_path / name), *option])
        assert (done.exit_code, f"no label has the class {name}" in done.stderr) == (code, True)


def test_splits_are_of_sequences_and_never_move():
    shares = {"train": 0.8, "val": 0.1, "test": 0.1}
    found = [split_of(f"drive{i}", shares) for i in range(2000)]
    assert {name: round(found.count(name) / 2000, 1) for name in shares} == shares
    assert split_of("drive7", shares) == found[7]
    assert split_of("drive7", {}) == ""


def test_refused_are_a_folder_in_use_and_what_is_no_run(tmp_path):
    source = run_of(tmp_path, frames=1)
    export(source, "png", str(tmp_path / "to"), NOTHING)
    (tmp_path / "begun" / "labels" / "drive").mkdir(parents=True)
    to, begun = tmp_path / "to", tmp_path / "begun"
    for run, target, choice, message in (
        (source, to, NOTHING, "is not empty"),
        (source, to / "export.json", NOTHING, r"export\.json is a file: name a folder"),
        (begun, tmp_path / "x", NOTHING, "is labeled to its end yet: wait"),
        (source, tmp_path / "x", Choice(run_key="nothing"), "no labeled sequence of run nothing"),
        (tmp_path / "in", tmp_path / "x", NOTHING, "name the --out of a run"),
        (source, tmp_path / "x", Choice(reviewed=True), "decisions are in a dataset"),
        (source, "https://me:secret@host/x", NOTHING, "must contain no password"),
    ):
        with pytest.raises(AutolabelError, match=message):
            export(str(run), "png", str(target), choice)


def test_the_command_says_what_it_did(tmp_path):
    source = run_of(tmp_path, frames=2)
    given = ["export", source, "--format", "coco", "--json", "--splits", "train=1,val=0"]
    done = CliRunner().invoke(cli, [*given, "--to", str(tmp_path / "to")])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["splits"] == {"train": 2, "val": 0}
    assert "2 frames and 10 labels of 1 sequence as coco" in done.stderr
    assert "val: 0 frames - no sequence" in done.stderr
    assert "to open: annotations/instances_train.json\n" in done.stderr
    assert [one.name for one in (tmp_path / "to/annotations").iterdir()] == ["instances_train.json"]
    for shares, why in (
        ("train=x", "expected shares such as"),
        ("train=0.5,val=0.6", "the shares add up to 1.1, not to 1"),
    ):
        wrong = [*given[:-1], shares, "--to", str(tmp_path / "y")]
        assert why in CliRunner().invoke(cli, wrong).stderr


@pytest.mark.parametrize("place", ["local", "memory"])
def test_of_two_exports_into_one_folder_at_once_the_second_is_refused(
    place, tmp_path, memory, monkeypatch
):
    """Each may have found the folder empty; equal ones would write equal files."""
    uri = f"{memory}/to" if place == "memory" else str(tmp_path / "to")
    seen, listed = [], storage.list_names
    monkeypatch.setattr(
        storage, "list_names", lambda uri: listed(uri) if len(seen) else seen.append(uri) or {}
    )
    with Sink(uri, command="of cars"):
        seen.clear()
        with pytest.raises(AutolabelError, match="another export is being written to"):
            Sink(uri, command="of people")
        assert len(listed(uri)) == 1
    assert not listed(uri), "a folder stays free after an export that failed at once"
