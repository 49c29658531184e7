"""Every format out is read back by its own tool, or by a reader of its specification."""

import json

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from sam2_core.mask_geometry import mask_of, one_polygon, polygons
from tasks.export.annotations import polygon_iou
from tasks.export.run import FORMATS, Choice, export, split_of
from tasks.export.types import Classes, ExportNotes, Instance, Sink
from tests.export.labeled_runs import NOTHING, export_frame, owned, run_of, truth


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
            assert (annotation["area"], annotation["score"]) == (
                coco_mask.area(rle), pytest.approx(score, abs=1e-5)
            )  # fmt: skip


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
        parts = polygons(mask_of(rle, size_hw))
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


CITYSCAPES = {"car": 26, "person": 24, "bicycle": 33}
PICTURES = {
    "png": "instances/drive/{:06d}.png",
    "davis": "Annotations/Full-Resolution/drive/{:05d}.png",
    "cityscapes": "gtFine/train/drive/drive_000000_{:06d}_gtFine_instanceIds.png",
}


@pytest.mark.parametrize("format_", PICTURES)
@pytest.mark.parametrize("tracks", [True, False])
def test_a_pixel_has_the_number_of_the_higher_score(tmp_path, format_, tracks):
    """Of Cityscapes as cityscapesscripts reads it: id * 1000 + number, or the id alone."""
    choice = Choice(class_map={"truck": "tractor"})
    report = export(run_of(tmp_path, tracks=tracks), format_, str(tmp_path / "to"), choice)
    others = 0
    for index, expected in enumerate(truth(tmp_path)):
        numbers, seen = np.arange(1, len(expected) + 2), {}
        if format_ == "cityscapes":
            others += sum(label == "truck" for label, _, _ in expected)
            for place, (label, _, _) in enumerate(expected):
                seen[label] = seen.get(label, -1) + 1
                numbers[place] = CITYSCAPES.get(label, 0) * 1000 + seen[label]
        numbers[-1] = 0  # of pixels that nobody owns
        picture = np.asarray(Image.open(tmp_path / "to" / PICTURES[format_].format(index)))
        owner = owned(expected, CITYSCAPES if format_ == "cityscapes" else None)
        assert (picture == numbers[owner]).all()
    told = {"class tractor is none of Cityscapes'": others} if others else {}
    assert (report["instances"], report["left_out"]) == (30 - others, told)
    pictures = {"png": "images/drive/000000", "davis": "JPEGImages/Full-Resolution/drive/00000"}
    city = "leftImg8bit/train/drive/drive_000000_000000_leftImg8bit"
    assert (tmp_path / "to" / f"{pictures.get(format_, city)}.jpg").is_file()
    if format_ == "davis":
        assert (tmp_path / "to/ImageSets/2017/train.txt").read_text() == "drive\n"
        assert report["labels_without_track"] == (0 if tracks else 30)


def test_classes_of_pixels(tmp_path):
    for format_ in ("png", "cityscapes"):
        export(run_of(tmp_path / "in", frames=1), format_, str(tmp_path / format_), NOTHING)
    names = json.loads((tmp_path / "png/classes.json").read_text())
    (expected,) = truth(tmp_path, frames=1)
    labels = np.array([*(label for label, _, _ in expected), "nothing"])
    classes = np.asarray(Image.open(tmp_path / "png/semantic/drive/000000.png"))
    assert (np.array(list(names.values()))[classes] == labels[owned(expected)]).all()
    name = "gtFine/train/drive/drive_000000_000000_gtFine_{}Ids.png"
    full, ids = (
        np.asarray(Image.open(tmp_path / "cityscapes" / name.format(kind)), int)
        for kind in ("instance", "label")
    )
    assert (np.where(full > 1000, full // 1000, full) == ids).all()


@pytest.mark.parametrize("format_", ["coco", "yolo", "png", "cvat", "label-studio", "fiftyone"])
def test_pictures_keep_their_names(tmp_path, format_):
    run = run_of(tmp_path, frames=2, files="night #{}%41.JPG")
    export(run, format_, str(tmp_path / "to"), NOTHING)
    pictures = sorted(path.name for path in (tmp_path / "to").rglob("*.JPG"))
    ahead = "drive__" if format_ == "yolo" else ""
    assert pictures == [f"{ahead}night #{number}%41.JPG" for number in range(2)]


def test_equal_names_of_one_camera_are_told_apart(tmp_path):
    run = run_of(tmp_path, frames=3, files="{}/front.jpg")
    export(run, "coco", str(tmp_path / "to"), NOTHING)
    read = json.loads((tmp_path / "to/annotations/instances.json").read_text())["images"]
    names = [one["file_name"] for one in read]
    assert names == ["drive/front.jpg", *(f"drive/front-{n:06d}.jpg" for n in (1, 2))]
    assert all((tmp_path / "to/images" / name).is_file() for name in names)


@pytest.mark.parametrize(("format_", "value"), [("mots", 1001), ("cityscapes", 26_000)])
def test_labels_that_a_format_leaves_out_own_no_pixel(tmp_path, format_, value):
    """A detector that calls one object truck and car must not cost the car its mask."""
    mask = np.zeros((720, 1280), np.uint8, order="F")
    mask[100:200, 100:300] = 1
    labels = [
        Instance(label, score, (100, 100, 300, 200), coco_mask.encode(mask)["counts"], 20_000)
        for label, score in (("kite", 0.9), ("car", 0.5), ("car", 0.4))
    ]
    frame = export_frame("drive", "", "x.jpg", labels, size_hw=(720, 1280))
    told = ExportNotes()
    with Sink(str(tmp_path / "to"), "none") as sink:
        writer = FORMATS[format_](sink, Classes(()), told)
        writer.add(frame)
        writer.close()
        sink.close({})
    (path,) = [*(tmp_path / "to").rglob("*_instanceIds.png"), *(tmp_path / "to").rglob("0*.png")]
    picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert ((picture == value) == (mask > 0)).all()
    covered = told.left_out["wholly covered by labels of higher scores"]
    assert (told.unwritten, covered) == (2, 1)
