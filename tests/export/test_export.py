"""Every format out is read back by its own tool, or by a reader of its specification."""

import json
import shutil

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from flows.cli.main import cli
from sam2_core.polygons import one_polygon, polygons
from sam2_core.types import AutolabelError
from tasks.export.frames import Choice, split_of
from tasks.export.masks import polygon_iou
from tasks.export.run import FORMATS, export
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, Instance, Told
from tasks.store import artifacts, storage
from tasks.store.manifests import ChunkRecord, Manifest, write_manifest
from tests.review.labels import STAMP, labeled_frames

NOTHING = Choice()


def store(out, frames_uri, labeled, size=4):
    """Store frames' labels as a run does; two chunks and more for the longer ones."""
    frame_of = {one.frame.index: one for one in labeled}
    sequence = labeled[0].frame
    records = []
    for chunk in artifacts.chunks_of([one.frame for one in labeled], STAMP.run_key, size):
        part = [frame_of[frame.index] for frame in chunk.frames]
        artifacts.write_labels(out, chunk, part, STAMP)
        stored = artifacts.read_chunk(out, chunk.stem, chunk.key)
        records.append(ChunkRecord.of(chunk, part).with_checksums(stored))
    key = artifacts.content_key([one.frame for one in labeled])
    write_manifest(out, Manifest(sequence.sequence_id, frames_uri, key, STAMP, tuple(records)))


def run_of(tmp_path, sequences=("drive",), frames=6, tracks=False, each=5):
    """Labels and pictures of a few sequences on this disk; returns the run's folder."""
    from dataclasses import replace

    from tasks.frames.identity import file_version
    from tasks.store.tables import LabeledFrame

    for number, name in enumerate(sequences):
        labeled = []
        for one in labeled_frames(frames, each, sequence_id=name, seed=number):
            path = tmp_path / "in" / name / f"{one.frame.index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.full((*one.frame.size_hw, 3), 90 + one.frame.index, np.uint8))
            etag = file_version(path)
            frame = replace(one.frame, uri=str(path), etag=etag, size_bytes=path.stat().st_size)
            boxes = one.boxes
            if tracks:
                boxes = replace(boxes, track_ids=np.arange(len(boxes)) + 7)
            labeled.append(LabeledFrame(frame, boxes, one.masks))
        store(str(tmp_path / "run"), str(tmp_path / "in" / name), labeled)
    return str(tmp_path / "run")


def truth(tmp_path, name="drive", frames=6, seed=0):
    """Label, score and mask of every instance, by frame."""
    return [
        [
            (label, float(score), {"size": [*one.masks.size_hw], "counts": rle})
            for label, score, rle in zip(
                one.boxes.labels, one.boxes.scores, one.masks.rle, strict=True
            )
        ]
        for one in labeled_frames(frames, 5, sequence_id=name, seed=seed)
    ]


def owned(instances, classes=None):
    """Masks after the higher scores of these classes have taken their pixels, as they are given."""
    owner = np.full(tuple(instances[0][2]["size"]), -1)
    for number in sorted(range(len(instances)), key=lambda i: instances[i][1]):
        if classes and instances[number][0] not in classes:
            continue
        owner[coco_mask.decode(instances[number][2]) > 0] = number
    return owner


def test_coco_gives_every_mask_back_as_it_was(tmp_path):
    report = export(run_of(tmp_path), "coco", str(tmp_path / "to"), NOTHING)
    assert (report["frames"], report["instances"], report["left_out"]) == (6, 30, {})
    coco = COCO(str(tmp_path / "to" / "annotations" / "instances.json"))
    for image_id, expected in zip(sorted(coco.getImgIds()), truth(tmp_path), strict=True):
        image = coco.loadImgs(image_id)[0]
        assert (tmp_path / "to" / "images" / image["file_name"]).is_file()
        found = coco.loadAnns(coco.getAnnIds(image_id))
        assert len(found) == len(expected)
        for annotation, (label, score, rle) in zip(found, expected, strict=True):
            assert coco.loadCats(annotation["category_id"])[0]["name"] == label
            assert (coco.annToMask(annotation) == coco_mask.decode(rle)).all()
            assert annotation["bbox"] == coco_mask.toBbox(rle).tolist()
            assert annotation["area"] == coco_mask.area(rle)
            assert annotation["score"] == pytest.approx(score, abs=1e-5)


def test_polygons_lose_what_the_report_says(tmp_path):
    report = export(run_of(tmp_path), "coco-polygons", str(tmp_path / "to"), NOTHING, images="none")
    coco = COCO(str(tmp_path / "to" / "annotations" / "instances.json"))
    expected = [rle for frame in truth(tmp_path) for _, _, rle in frame]
    ious = [
        coco_mask.iou([coco.annToRLE(annotation)], [rle], [0])[0][0]
        for annotation, rle in zip(coco.loadAnns(sorted(coco.getAnnIds())), expected, strict=True)
    ]
    assert report["polygon_iou_mean"] == pytest.approx(np.mean(ious), abs=1e-6)
    assert report["polygon_iou_worst"] == pytest.approx(min(ious), abs=1e-6)
    assert min(ious) > 0.99
    assert not (tmp_path / "to" / "images").exists()


def test_polygons_keep_holes_and_parts():
    rng = np.random.default_rng(0)
    for _ in range(30):
        size_hw = tuple(rng.integers(5, 120, 2).tolist())
        noise = cv2.GaussianBlur(
            rng.random(size_hw).astype(np.float32), (0, 0), rng.uniform(0.5, 6)
        )
        mask = (noise > np.quantile(noise, 0.6)).astype(np.uint8)
        rle = coco_mask.encode(np.asfortranarray(mask))["counts"]
        instance = Instance("car", 1, (0, 0, 1, 1), rle, int(mask.sum()))
        parts = polygons(mask)
        assert len(parts) == cv2.connectedComponents(mask, connectivity=8)[0] - 1
        for shape in (parts, [one_polygon(parts)]):
            assert polygon_iou(shape, instance, size_hw) > 0.999


def read_yolo(text, size_hw):
    """Read labels as the format is specified: class, then x y pairs as fractions."""
    for line in text.splitlines():
        number, *values = line.split()
        points = np.array(values, float).reshape(-1, 2) * (size_hw[1], size_hw[0])
        yield (
            int(number),
            coco_mask.merge(coco_mask.frPyObjects([points.ravel().tolist()], *size_hw)),
        )


def test_yolo_is_read_back(tmp_path):
    import yaml

    names = ("drive", "other")
    choice = Choice(splits={"train": 1, "val": 1})
    splits = {name: split_of(name, choice.splits) for name in names}
    report = export(run_of(tmp_path, names), "yolo", str(tmp_path / "to"), choice)
    data = yaml.safe_load((tmp_path / "to" / "data.yaml").read_text())
    assert report["validates_on_training"] is ("val" not in splits.values())
    assert "path" not in data, 'Ultralytics takes "." for the folder that it runs in'
    for seed, name in enumerate(names):
        for index, expected in enumerate(truth(tmp_path, name, seed=seed)):
            path = tmp_path / "to" / "labels" / splits[name] / f"{name}__{index:06d}.txt"
            picture = str(path).replace("/labels/", "/images/").replace(".txt", ".jpg")
            assert cv2.imread(picture).shape == (720, 1280, 3)
            found = list(read_yolo(path.read_text(), (720, 1280)))
            for (number, rle), (label, _, mask) in zip(found, expected, strict=True):
                assert data["names"][number] == label
                assert coco_mask.iou([rle], [mask], [0])[0][0] >= report["polygon_iou_worst"] - 1e-6
    assert report["polygon_iou_worst"] > 0.99


def test_png_says_who_owns_a_pixel_and_of_which_class(tmp_path):
    report = export(run_of(tmp_path), "png", str(tmp_path / "to"), NOTHING)
    names = {int(k): v for k, v in json.loads((tmp_path / "to/classes.json").read_text()).items()}
    for index, expected in enumerate(truth(tmp_path)):
        owner = owned(expected)
        stem = f"drive/{index:06d}.png"
        numbers = cv2.imread(str(tmp_path / "to/instances" / stem), cv2.IMREAD_UNCHANGED)
        classes = cv2.imread(str(tmp_path / "to/semantic" / stem), cv2.IMREAD_UNCHANGED)
        assert (numbers.dtype, classes.dtype) == (np.uint16, np.uint8)
        assert (numbers == owner + 1).all()
        labels = np.array([*(label for label, _, _ in expected), "nothing"])
        assert (np.array([names[i] for i in range(len(names))])[classes] == labels[owner]).all()
    assert report["instances"] == 30


def test_cityscapes_ids(tmp_path):
    """Pixel values as cityscapesscripts reads them: id * 1000 + number, or the id alone."""
    choice = Choice(class_map={"truck": "tractor"})
    report = export(run_of(tmp_path), "cityscapes", str(tmp_path / "to"), choice)
    ids = {"car": 26, "person": 24, "bicycle": 33}
    left_out = 0
    for index, expected in enumerate(truth(tmp_path)):
        name = f"train/drive/drive_000000_{index:06d}"
        gt = tmp_path / "to" / "gtFine"
        full = cv2.imread(str(gt / f"{name}_gtFine_instanceIds.png"), cv2.IMREAD_UNCHANGED)
        labels = cv2.imread(str(gt / f"{name}_gtFine_labelIds.png"), cv2.IMREAD_UNCHANGED)
        assert (tmp_path / "to/leftImg8bit" / f"{name}_leftImg8bit.jpg").is_file()
        assert (np.where(full > 1000, full // 1000, full) == labels).all()
        owner, seen = owned(expected, ids), {}
        for number, (label, _, _) in enumerate(expected):
            left_out += label == "truck"
            value = ids.get(label, 0)
            place = seen[label] = seen.get(label, -1) + 1
            assert (full[owner == number] == (value * 1000 + place if value else 0)).all()
        assert (full[owner < 0] == 0).all()
    assert report["left_out"] == {"class tractor is none of Cityscapes'": left_out}
    assert report["instances"] == 30 - left_out


@pytest.mark.parametrize(("format_", "value"), [("mots", 1001), ("cityscapes", 26_000)])
def test_labels_that_a_format_leaves_out_own_no_pixel(tmp_path, format_, value):
    """A detector that calls one object truck and car must not cost the car its mask."""
    mask = np.zeros((720, 1280), np.uint8, order="F")
    mask[100:200, 100:300] = 1
    frame = ExportFrame(
        "drive", "", 0, None, "x.jpg", (720, 1280), "", "",
        tuple(
            Instance(label, score, (100, 100, 300, 200), coco_mask.encode(mask)["counts"], 20_000)
            for label, score in (("kite", 0.9), ("car", 0.5), ("car", 0.4))
        ),
        None,
    )  # fmt: skip
    told = Told()
    with Sink(str(tmp_path / "to"), "none") as sink:
        writer = FORMATS[format_](sink, Classes(()), told)
        writer.add(frame)
        writer.close()
        sink.close({})
    (path,) = [*(tmp_path / "to").rglob("*_instanceIds.png"), *(tmp_path / "to").rglob("0*.png")]
    picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert ((picture == value) == (mask > 0)).all()
    assert told.unwritten == 2
    assert told.left_out["wholly covered by labels of higher scores"] == 1


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


def test_classes_are_those_of_tracks_if_asked(tmp_path):
    from tasks.export.frames import chosen_manifests
    from tasks.store.tracks import FrameTracks, write_tracks

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
    import hashlib

    import s3fs

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
    (tmp_path / "in/drive/2.jpg").unlink()
    (tmp_path / "in/drive/4.jpg").write_bytes(b"another one")
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
        ExportFrame(sequence, camera, 0, None, "a.jpg", (72, 128), "", "", (), tmp_path / "a.jpg")
        for sequence, camera in (("x", "front"), ("x__front", ""))
    ]
    cv2.imwrite(str(tmp_path / "a.jpg"), np.zeros((72, 128, 3), np.uint8))
    with Sink(str(tmp_path / "to")) as sink:
        writer = FORMATS[format_](sink, Classes(()), Told())
        for frame in frames:
            writer.add(frame)
        facts = writer.close()
        sink.close({"format": format_})
    assert facts["sequence_names"] == {"x__front": "x/front", "x__front-2": "x__front"}
    assert len([*(tmp_path / "to").rglob("*.jpg")]) == 2
    paths = [one["path"] for one in json.loads((tmp_path / "to/export.json").read_text())["files"]]
    assert len(paths) == len({*paths})


def test_links_are_for_pictures_that_stay_and_folders_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
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
    source = run_of(tmp_path, frames=1)
    given = ["export", source, "--format", "coco", "--images", "none", "--to"]
    done = CliRunner().invoke(cli, [*given, str(tmp_path / "a"), "--classes", "tram"])
    assert (done.exit_code, "no label is of class tram" in done.stderr) == (1, True)
    done = CliRunner().invoke(cli, [*given, str(tmp_path / "b"), "--class-map", "tank=car"])
    assert (done.exit_code, "no label is of class tank" in done.stderr) == (0, True)


def test_an_export_of_decisions_that_nobody_made_says_so():
    from flows.cli.export import _nothing

    empty = {"frames": 0, "instances": 0, "classes_not_there": []}
    assert "nobody has looked" in _nothing(empty, reviewed=True)
    assert not _nothing(empty | {"frames": 1}, reviewed=True), "all of its labels were wrong"


def test_splits_are_of_sequences_and_never_move():
    shares = {"train": 0.8, "val": 0.1, "test": 0.1}
    found = [split_of(f"drive{i}", shares) for i in range(2000)]
    assert {name: round(found.count(name) / 2000, 1) for name in shares} == shares
    assert split_of("drive7", shares) == found[7]
    assert split_of("drive7", {}) == ""


def test_refused_are_a_folder_in_use_and_what_is_no_run(tmp_path):
    source = run_of(tmp_path, frames=1)
    export(source, "png", str(tmp_path / "to"), NOTHING)
    with pytest.raises(AutolabelError, match="is not empty"):
        export(source, "png", str(tmp_path / "to"), NOTHING)
    with pytest.raises(AutolabelError, match=r"export\.json is a file: name a folder"):
        export(source, "png", str(tmp_path / "to" / "export.json"), NOTHING)
    (tmp_path / "begun" / "labels" / "drive").mkdir(parents=True)
    with pytest.raises(AutolabelError, match="is labeled to its end yet: wait"):
        export(str(tmp_path / "begun"), "png", str(tmp_path / "to2"), NOTHING)
    with pytest.raises(AutolabelError, match="no labeled sequence of run nothing"):
        export(source, "png", str(tmp_path / "x"), Choice(run_key="nothing"))
    with pytest.raises(AutolabelError, match="name the --out of a run"):
        export(str(tmp_path / "in"), "png", str(tmp_path / "x"), NOTHING)
    with pytest.raises(AutolabelError, match="decisions are in a dataset"):
        export(source, "png", str(tmp_path / "x"), Choice(reviewed=True))
    with pytest.raises(AutolabelError, match="must contain no password"):
        export(source, "png", "https://me:secret@host/x", NOTHING)


def test_the_command_says_what_it_did(tmp_path):
    source = run_of(tmp_path, frames=2)
    given = ["export", source, "--format", "coco", "--json", "--splits", "train=1,val=0"]
    done = CliRunner().invoke(cli, [*given, "--to", str(tmp_path / "to")])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["splits"] == {"train": 2, "val": 0}
    assert "2 frames and 10 labels of 1 sequence as coco" in done.stderr
    assert "val: 0 frames - no sequence fell there" in done.stderr
    for shares, why in (
        ("train=x", "expected shares such as"),
        ("train=0.5,val=0.6", "the shares add up to 1.1, and not to 1"),
    ):
        wrong = [*given[:-1], shares, "--to", str(tmp_path / "y")]
        assert why in CliRunner().invoke(cli, wrong).stderr
    shutil.rmtree(tmp_path / "to")


@pytest.mark.parametrize("place", ["local", "memory"])
def test_of_two_exports_into_one_folder_at_once_the_second_is_refused(
    place, tmp_path, memory, monkeypatch
):
    """Each may have found the folder empty."""
    uri = f"{memory}/to" if place == "memory" else str(tmp_path / "to")
    seen, listed = [], storage.list_names
    monkeypatch.setattr(
        storage, "list_names", lambda uri: listed(uri) if len(seen) else seen.append(uri) or {}
    )
    with Sink(uri):
        seen.clear()
        with pytest.raises(AutolabelError, match="another export is being written to"):
            Sink(uri)
        assert len(listed(uri)) == 1
    assert not listed(uri), "a folder stays free after an export that failed at once"
