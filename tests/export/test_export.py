"""Every format out is read back by its own tool, or by a reader of its specification."""

import json

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from sam2_core.mask_geometry import one_polygon, polygons
from tasks.export.coco import polygon_iou
from tasks.export.frames import Choice, split_of
from tasks.export.run import FORMATS, export
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, Instance, Told
from tests.export.labeled_runs import NOTHING, owned, run_of, truth


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


@pytest.mark.parametrize("format_", ["coco", "yolo", "png", "cvat", "label-studio", "fiftyone"])
def test_pictures_keep_their_names(tmp_path, format_):
    run = run_of(tmp_path, frames=2, files="night #{}%41.JPG")
    export(run, format_, str(tmp_path / "to"), NOTHING)
    pictures = sorted(path.name for path in (tmp_path / "to").rglob("*.jpg"))
    ahead = "drive__" if format_ == "yolo" else ""
    assert pictures == [f"{ahead}night #{number}%41.jpg" for number in range(2)]


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
    frame = ExportFrame(
        "drive", "", 0, None, "x.jpg", (720, 1280), "", "", "x",
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
