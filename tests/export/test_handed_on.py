"""What is handed on holds wherever it goes: whole, without this machine's paths, on any disk."""

import json
import tarfile
import unicodedata
import uuid
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from pycocotools import mask as coco_mask

from flows.cli.main import cli
from sam2_core.types import AutolabelError
from tasks.boxes.import_files import import_boxes
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import open_dataset
from tasks.evaluate.evaluate import find_image
from tasks.export.run import FORMATS, Choice, chosen_manifests, export, split_of
from tasks.frames.identity import file_version
from tasks.load.into_fiftyone import load_sequence, prepare_dataset
from tasks.review.actions import accept, choose
from tasks.store import storage
from tasks.store.manifests import write_manifest
from tasks.types import FrameRef
from tests.export.labeled_runs import NOTHING, run_of, store, stored, truth
from tests.review.labels import labeled_frame, labeled_frames
from tests.review.reviewed import pick


def files_of(folder):
    """Content of every file below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


class Ended(Exception):
    """The process was ended."""


def ended_export(source, target, format_="coco", after=3, **how):
    """Begin an export that is ended after a few frames."""

    def end(frames):
        if frames == after:
            raise Ended

    with pytest.raises(Ended):
        export(source, format_, str(target), NOTHING, on_frame=end, **how)


@pytest.mark.parametrize("place", ["local", "s3"])
def test_the_same_command_finishes_an_export_that_was_ended(tmp_path, place, request):
    source = run_of(tmp_path)
    target = str(tmp_path / "to") if place == "local" else f"{request.getfixturevalue('s3')}/to"
    ended_export(source, target)
    left = storage.list_names(target)
    assert [name.partition("-")[0] for name in left] == ["UNFINISHED"]
    storage.write_bytes(f"{target}/images/of an older label.jpg", b"x")
    export(source, "coco", target, NOTHING)
    export(source, "coco", str(tmp_path / "whole"), NOTHING)
    there = {name: storage.read_bytes(f"{target}/{name}") for name in files_of(tmp_path / "whole")}
    assert there == files_of(tmp_path / "whole")
    assert [*storage.list_names(target)] == ["export.json"]
    assert "of an older label.jpg" not in storage.list_names(f"{target}/images")


def test_links_are_made_again(tmp_path):
    source, target = run_of(tmp_path), tmp_path / "to"
    ended_export(source, target, "png", images="link")
    export(source, "png", str(target), NOTHING, images="link")
    assert all(path.is_symlink() for path in (target / "images/drive").iterdir())


def test_another_command_leaves_an_unfinished_export_alone(tmp_path):
    source, target = run_of(tmp_path), tmp_path / "to"
    ended_export(source, target)
    before = files_of(target)
    for format_, choice in (("png", NOTHING), ("coco", Choice(classes=("car",)))):
        with pytest.raises(AutolabelError, match="not finished: give its command again, or name"):
            export(source, format_, str(target), choice)
    assert files_of(target) == before


def test_an_export_that_failed_before_its_first_file_leaves_the_folder_free(tmp_path):
    frames = [
        replace(one, frame=replace(one.frame, uri=f"/drive.mp4#frame={one.frame.index}"))
        for one in labeled_frames(2)
    ]
    store(str(tmp_path / "run"), "/drive.mp4", frames)
    with pytest.raises(AutolabelError, match="no file of its own, and FiftyOne shows files"):
        export(str(tmp_path / "run"), "fiftyone", str(tmp_path / "to"), NOTHING, images="none")
    assert not files_of(tmp_path / "to")


@pytest.mark.parametrize("format_", FORMATS)
def test_no_path_of_this_machine_is_handed_on(tmp_path, format_):
    source = run_of(tmp_path, ("cut", "drive"), frames=2, tracks=True)
    (cut,) = (tmp_path / "run/manifests").rglob("cut@*.json")
    cut.write_bytes(cut.read_bytes()[:-40])
    export(source, format_, str(tmp_path / "to"), NOTHING)
    written = files_of(tmp_path / "to")
    told = [name for name, data in written.items() if str(tmp_path).encode() in data]
    assert (told, len(written) > 1) == ([], True)


def test_no_path_of_this_machine_is_in_an_export_of_what_people_decided(decided, tmp_path):
    for format_ in ("coco", "fiftyone"):
        export(decided, format_, str(tmp_path / format_), Choice(reviewed=True))
        written = files_of(tmp_path / format_)
        assert not [one for one, data in written.items() if str(tmp_path).encode() in data]


@pytest.mark.parametrize("format_", FORMATS)
def test_names_that_differ_by_case_or_accents_alone_are_kept_apart(tmp_path, format_):
    """A receiver's file system may take them for one, and keep one of two files."""
    names = ("Drive", "caf\u00e9", "cafe\u0301", "drive")
    report = export(run_of(tmp_path, names, frames=1), format_, str(tmp_path / "to"), NOTHING)
    assert report["sequences"] == 4
    paths = [*files_of(tmp_path / "to")]
    assert len({unicodedata.normalize("NFC", path).casefold() for path in paths}) == len(paths)


def test_cameras_that_differ_by_case_alone_are_kept_apart(tmp_path):
    labeled = [labeled_frame(0, 2, camera=camera) for camera in ("Front", "front")]
    store(str(tmp_path / "run"), "memory://frames/drive", labeled)
    export(str(tmp_path / "run"), "coco", str(tmp_path / "to"), NOTHING, images="none")
    images = json.loads((tmp_path / "to/annotations/instances.json").read_text())["images"]
    assert [(one["camera"], one["file_name"]) for one in images] == [
        ("Front", "drive/Front/000000.jpg"), ("front", "drive/front-2/000000.jpg"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_yolo_validates_on_the_split_for_it_whatever_it_is_called(tmp_path, name):
    shares = {"train": 0.5, name: 0.5}
    names = [f"drive{number}" for number in range(9)]
    splits = {split_of(one, shares): one for one in names}
    source = run_of(tmp_path, sorted(splits.values()), frames=1)
    report = export(source, "yolo", str(tmp_path / "to"), Choice(splits=shares))
    data = yaml.safe_load((tmp_path / "to/data.yaml").read_text())
    assert (data["train"], data["val"]) == ("images/train", f"images/{name}")
    assert report["validates_on_training"] is False
    assert len([*(tmp_path / "to" / data["val"]).iterdir()]) == 1


@pytest.mark.parametrize("splits", ["a=1,b=1", "train=1,test=1", "val=1,valid=1", "train=1,dev=1"])
def test_yolo_refuses_other_splits_before_it_writes(tmp_path, splits):
    given = ["export", run_of(tmp_path, frames=1), "--format", "yolo", "--to", str(tmp_path / "to")]
    told = CliRunner().invoke(cli, [*given, "--splits", splits]).exception
    assert "one for validation (val, valid or validation)" in str(told)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [((), "no --splits are given"),
     (("--splits", "train=1,valid=0"), "no sequence fell into another split")],
)  # fmt: skip
def test_the_command_says_why_yolo_validates_on_training_pictures(tmp_path, options, why):
    given = ["export", run_of(tmp_path, frames=1), "--format", "yolo", "--to", str(tmp_path / "to")]
    said = CliRunner().invoke(cli, [*given, *options]).stderr
    assert f"validates on the training pictures: {why}" in said


def test_the_report_measures_what_ultralytics_fills(tmp_path):
    """It turns corners to whole numbers and fills by OpenCV, which draws the border, too."""
    report = export(run_of(tmp_path), "yolo", str(tmp_path / "to"), NOTHING, images="none")
    ious = []
    for path, masks in zip(sorted(tmp_path.rglob("*.txt")), truth(tmp_path), strict=True):
        for line, (_, _, rle) in zip(path.read_text().splitlines(), masks, strict=True):
            corners = np.array(line.split()[1:], np.float32).reshape(-1, 2) * (1280, 720)
            filled = np.zeros((720, 1280), np.uint8)
            cv2.fillPoly(filled, [corners.astype(np.int32)], [1])
            mask = coco_mask.decode(rle)
            ious.append((mask & filled).sum() / (mask | filled).sum())
    assert report["polygon_iou_mean"] == pytest.approx(np.mean(ious), abs=1e-6)
    assert report["polygon_iou_worst"] == pytest.approx(min(ious), abs=1e-6)


def drive_of(cameras):
    """Frames of cameras, each with its times in milliseconds; None where it has none."""
    labeled = []
    for camera, times_ms in cameras.items():
        for index, time_ms in enumerate(times_ms):
            one = labeled_frame(index, 1, camera=camera)
            time_ns = None if time_ms is None else 1_700_000_000_000_000_000 + time_ms * 1_000_000
            labeled.append(replace(one, frame=replace(one.frame, timestamp_ns=time_ns)))
    return labeled


@pytest.mark.parametrize(
    ("cameras", "samples"),
    [
        ({"CAM_FRONT": (0, 100, 200), "CAM_LEFT": (4, 104, 204)}, 3),
        ({"CAM_FRONT": (0, 100, 200, 300), "CAM_LEFT": (10, 210)}, 4),
        ({"CAM_FRONT": (0, 100), "CAM_LEFT": (470, 570)}, 4),
        ({"CAM_FRONT": (None, None), "CAM_LEFT": (None, None)}, 2),
        ({"CAM_FRONT": (0, 0)}, 2),
    ],
)
def test_cameras_of_one_moment_are_one_sample_of_t4_and_one_group_of_the_dataset(
    database, tmp_path, cameras, samples
):
    run, name = str(tmp_path / "run"), f"moments {uuid.uuid4().hex[:8]}"
    manifest = stored(run, "memory://frames/drive", drive_of(cameras))
    write_manifest(run, manifest)
    export(run, "t4", str(tmp_path / "to"), NOTHING, images="none")
    folder = tmp_path / "to/drive/annotation"
    tables = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert len(tables["sample"]) == tables["scene"][0]["nbr_samples"] == samples
    of_sample = {}
    for row in tables["sample_data"]:
        camera, file = row["filename"].split("/")[1:]
        of_sample.setdefault(row["sample_token"], set()).add((camera, int(file[:6])))
    prepare_dataset(name, [*cameras, "another"], run)
    load_sequence(name, run, manifest)
    of_group = {}
    for one in sample_collection(open_dataset(name)).find({}):
        place = (one["camera"], one["frame_number"])
        of_group.setdefault(one["group"]["_id"], set()).add(place)
    assert sorted(map(sorted, of_sample.values())) == sorted(map(sorted, of_group.values()))


def test_t4_joins_the_frames_of_an_excerpt_as_all_were_joined(database, tmp_path):
    """Left to themselves they lie far apart, and would be joined over longer times."""
    run, name = str(tmp_path / "run"), f"excerpt {uuid.uuid4().hex[:8]}"
    manifest = stored(run, "memory://frames/drive", drive_of({"A": range(0, 800, 100), "B": [160]}))
    write_manifest(run, manifest)
    prepare_dataset(name, ["A", "B"], run)
    load_sequence(name, run, manifest)
    dataset = open_dataset(name)
    for camera, number in (("A", 0), ("A", 3), ("B", 0)):
        wanted = {"camera": camera, "frame_number": number}
        sample = sample_collection(dataset).find_one(wanted)
        label = sample["detections"]["detections"][0]
        accept(dataset, choose(dataset, [str(sample["_id"])], [str(label["_id"])]))
    export(name, "t4", str(tmp_path / "to"), Choice(reviewed=True), images="none")
    samples = json.loads((tmp_path / "to/drive/annotation/sample.json").read_text())
    assert len(samples) == 3, "the frame of B belongs to one of A that is not exported"


def test_a_picture_of_an_export_is_found_in_its_source_by_its_suffix(tmp_path):
    source = run_of(tmp_path, frames=2, files="up {}.JPG")
    export(source, "coco", str(tmp_path / "to"), Choice(splits={"train": 1}))
    read = json.loads((tmp_path / "to/annotations/instances_train.json").read_text())
    for folder in (tmp_path / "in", tmp_path / "in/drive"):
        found = [find_image(folder, one["file_name"]) for one in read["images"]]
        assert found == [tmp_path / f"in/drive/up {number}.JPG" for number in range(2)]


def test_boxes_of_an_export_fit_the_frames_of_a_sequence_that_is_called_otherwise(tmp_path):
    source = run_of(tmp_path, ("one", "two"), frames=1)
    export(source, "coco", str(tmp_path / "to"), NOTHING, images="none")
    boxes = import_boxes(str(tmp_path / "to/annotations/instances.json"))
    uri = str(tmp_path / "in/two/000000.jpg")
    assert len(boxes.of(FrameRef("2026-11-24__two", "", 0, None, uri))) == 5


@pytest.mark.parametrize("images", ["copy", "none"])
def test_members_of_archives_keep_their_suffixes(tmp_path, images):
    picture, archive = tmp_path / "up.JPG", tmp_path / "drive.tar"
    cv2.imwrite(str(picture), np.zeros((720, 1280, 3), np.uint8))
    with tarfile.open(archive, "w") as tar:
        tar.add(picture, "up.JPG")
    with tarfile.open(archive) as tar:
        at = tar.getmember("up.JPG").offset_data
    one = labeled_frame(0, 2)
    uri, version = f"{archive}#up.JPG#at={at}", file_version(archive)
    frame = replace(one.frame, uri=uri, etag=version, size_bytes=picture.stat().st_size)
    store(str(tmp_path / "run"), str(archive), [replace(one, frame=frame)])
    export(str(tmp_path / "run"), "coco", str(tmp_path / "to"), NOTHING, images=images)
    (image,) = json.loads((tmp_path / "to/annotations/instances.json").read_text())["images"]
    assert image["file_name"] == "drive/up.JPG"
    assert (tmp_path / "to/images/drive/up.JPG").is_file() == (images == "copy")


@pytest.mark.parametrize("format_", ["cityscapes", "davis", "mots", "t4"])
def test_names_that_a_format_prescribes_end_as_its_readers_look_for_them(tmp_path, format_):
    export(run_of(tmp_path, frames=1, files="{}.JPG"), format_, str(tmp_path / "to"), NOTHING)
    assert len([*(tmp_path / "to").rglob("*.jpg")]) == 1


def test_fiftyone_finds_the_source_where_no_picture_is_copied(tmp_path, database):
    import fiftyone as fo

    export(run_of(tmp_path, frames=2), "fiftyone", str(tmp_path / "to"), NOTHING, images="none")
    dataset = fo.Dataset.from_dir(str(tmp_path / "to"), dataset_type=fo.types.FiftyOneDataset)
    try:
        assert sorted(dataset.values("filepath")) == [
            str(tmp_path / f"in/drive/00000{number}.jpg") for number in range(2)
        ]
    finally:
        dataset.delete()


@pytest.fixture
def decided(database, tmp_path):
    """A dataset of two frames; somebody has accepted every label of the first."""
    name, run = f"handed on {uuid.uuid4().hex[:8]}", run_of(tmp_path, frames=2)
    prepare_dataset(name, out_uri=run)
    load_sequence(name, run, *chosen_manifests(run))
    accept(*pick(name, 0, *range(5)))
    return name


def test_cvat_tells_what_people_decided_from_what_the_machine_did(decided, tmp_path):
    export(decided, "cvat", str(tmp_path / "to"), NOTHING, images="none")
    images = ET.parse(tmp_path / "to/annotations.xml").getroot().iter("image")
    sources = [{mask.get("source") for mask in image.iter("mask")} for image in images]
    assert sources == [{"manual"}, {"auto"}]


def test_label_studio_gets_no_prediction_without_a_label(decided, tmp_path):
    export(decided, "label-studio", str(tmp_path / "to"), NOTHING, images="none")
    tasks = json.loads((tmp_path / "to/tasks.json").read_text())
    assert [(len(one["predictions"]), len(one["annotations"])) for one in tasks] == [(0, 1), (1, 0)]
