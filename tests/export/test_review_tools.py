"""What CVAT, Label Studio and FiftyOne read is what was labeled, pixel by pixel."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tasks.boxes.import_files import import_boxes
from tasks.export.review_tools import packed
from tasks.export.run import Choice, export
from tests.export.labeled_runs import run_of, store, truth
from tests.review.labels import labeled_frame


def test_cvat_xml_has_every_mask_as_it_was(tmp_path):
    """Read as CVAT's own dataset manager does: runs of 0 and 1 in turn within the box."""
    export(run_of(tmp_path, tracks=True), "cvat", str(tmp_path / "to"), Choice())
    root = ET.parse(tmp_path / "to" / "annotations.xml").getroot()
    assert root.findtext("version") == "1.1"
    names = [label.findtext("name") for label in root.iter("label")]
    for image, expected in zip(root.iter("image"), truth(tmp_path), strict=True):
        size_hw = (int(image.get("height")), int(image.get("width")))
        assert cv2.imread(str(tmp_path / "to/images" / image.get("name"))).shape[:2] == size_hw
        masks = image.findall("mask")
        for number, (mask, (label, score, rle)) in enumerate(zip(masks, expected, strict=True)):
            left, top, width, height = (
                int(mask.get(name)) for name in ("left", "top", "width", "height")
            )
            lengths = [int(one) for one in mask.get("rle").split(",")]
            values = np.repeat(np.arange(len(lengths)) % 2, lengths)
            pixels = np.zeros(size_hw, np.uint8)
            pixels[top : top + height, left : left + width] = values.reshape(height, width)
            np.testing.assert_array_equal(pixels, coco_mask.decode(rle))
            told = {one.get("name"): one.text for one in mask.findall("attribute")}
            assert (mask.get("label"), told["track_id"]) == (label, str(number + 7))
            assert mask.get("label") in names
            assert float(told["score"]) == pytest.approx(score, abs=1e-5)
    imported = import_boxes(str(tmp_path / "to" / "annotations.xml"))
    assert sum(imported.class_counts.values()) == 30


def test_labels_that_following_added_are_named(tmp_path):
    run, told = str(tmp_path / "run"), {}
    store(run, "memory://frames/drive", [replace(labeled_frame(0, 3), followed=(2,))])
    for name in ("coco", "cvat", "label-studio", "fiftyone"):
        export(run, name, str(tmp_path / name), Choice(), images="none")
    for mask in ET.parse(tmp_path / "cvat" / "annotations.xml").getroot().iter("mask"):
        found = {one.get("name"): one.text for one in mask.findall("attribute")}
        told.setdefault("cvat", []).append(found["source"])
    (task,) = json.loads((tmp_path / "label-studio" / "tasks.json").read_text())
    told["label-studio"] = [one["meta"].get("source") for one in task["predictions"][0]["result"]]
    (sample,) = json.loads((tmp_path / "fiftyone" / "samples.json").read_text())["samples"]
    told["fiftyone"] = [one.get("source") for one in sample["detections"]["detections"]]
    coco = json.loads((tmp_path / "coco" / "annotations" / "instances.json").read_text())
    told["coco"] = [one.get("source") for one in coco["annotations"]]
    assert told == {name: [None, None, "followed"] for name in told}
    assert len(told) == 4


def unpacked(data):
    """Unpack rle-pack as its specification says (thi.ng/rle-pack), as Label Studio does."""
    bits = "".join(f"{byte:08b}" for byte in data)
    place = 0

    def read(count):
        nonlocal place
        place += count
        return int(bits[place - count : place], 2)

    length, word = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    out = np.zeros(length, np.uint8)
    at = 0
    while at < length:
        is_run = read(1)
        end = at + 1 + read(sizes[read(2)])
        if is_run:
            out[at:end] = read(word)
        else:
            out[at:end] = [read(word) for _ in range(end - at)]
        at = end
    return out


def test_label_studio_unpacks_every_mask_as_it_was(tmp_path):
    export(run_of(tmp_path, frames=2), "label-studio", str(tmp_path / "to"), Choice())
    tasks = json.loads((tmp_path / "to" / "tasks.json").read_text())
    config = (tmp_path / "to" / "labeling_config.xml").read_text()
    labels = {label.get("value") for label in ET.fromstring(config).iter("Label")}
    for task, expected in zip(tasks, truth(tmp_path, frames=2), strict=True):
        served = task["data"]["image"].removeprefix("/data/local-files/?d=")
        assert (tmp_path / "to" / served).is_file()
        assert task["annotations"] == []
        results = task["predictions"][0]["result"]
        for result, (label, score, rle) in zip(results, expected, strict=True):
            height, width = result["original_height"], result["original_width"]
            pixels = unpacked(result["value"]["rle"]).reshape(height, width, 4)
            np.testing.assert_array_equal(pixels[:, :, 3] > 0, coco_mask.decode(rle) > 0)
            assert (pixels == pixels[:, :, :1]).all()
            assert result["value"]["brushlabels"] == [label]
            assert label in labels
            assert result["score"] == pytest.approx(score, abs=1e-5)


def test_packing_takes_masks_of_any_size_and_beginning():
    rng = np.random.default_rng(0)
    for size_hw in ((1, 1), (3, 5), (40, 30), (300, 400)):
        for share in (0, 0.02, 0.5, 1):
            pixels = (rng.random(size_hw) < share).astype(np.uint8)
            found = unpacked(packed(pixels)).reshape(*size_hw, 4)
            np.testing.assert_array_equal(found[:, :, 0], pixels * 255)


def test_fiftyone_reads_what_was_exported(tmp_path, database):
    import fiftyone as fo

    export(run_of(tmp_path, frames=3, tracks=True), "fiftyone", str(tmp_path / "to"), Choice())
    dataset = fo.Dataset.from_dir(str(tmp_path / "to"), dataset_type=fo.types.FiftyOneDataset)
    try:
        assert len(dataset) == 3
        for sample, expected in zip(
            dataset.sort_by("frame_number"), truth(tmp_path, frames=3), strict=True
        ):
            size_hw = (sample.metadata.height, sample.metadata.width)
            assert cv2.imread(sample.filepath).shape[:2] == size_hw
            found = sample.detections.detections
            for number, (one, (label, score, rle)) in enumerate(zip(found, expected, strict=True)):
                assert (one.label, one.index) == (label, number + 7)
                assert one.confidence == pytest.approx(score, abs=1e-5)
                left, top = (round(one.bounding_box[i] * size_hw[1 - i]) for i in (0, 1))
                height, width = one.mask.shape
                drawn = np.zeros(size_hw, bool)
                drawn[top : top + height, left : left + width] = one.mask
                np.testing.assert_array_equal(drawn, coco_mask.decode(rle) > 0)
                assert one.bounding_box[2:] == [width / size_hw[1], height / size_hw[0]]
    finally:
        dataset.delete()
