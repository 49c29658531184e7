"""Ground truth onto its frames."""

import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.dataset import layout, schema
from tasks.evaluate.evaluate import open_truth
from tasks.load.into_fiftyone import load_truth, prepare_dataset
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef
from tests.review.labels import STAMP, load_frames

SIZE = (60, 80)


def square(x: int, y: int, side: int) -> dict:
    image = np.zeros(SIZE, np.uint8, order="F")
    image[y : y + side, x : x + side] = 1
    return {"size": list(SIZE), "counts": coco_mask.encode(image)["counts"].decode()}


def labels(uri: str, index: int, squares: list[tuple[int, int, int]]) -> LabeledFrame:
    rle = tuple(square(*one)["counts"].encode() for one in squares)
    boxes = np.array([[x, y, x + s, y + s] for x, y, s in squares], np.float32).reshape(-1, 4)
    count = len(squares)
    masks = Masks(rle, SIZE, [1] * count, [1] * count, [9] * count,
                  [s * s for _, _, s in squares], ("",) * count)  # fmt: skip
    frame = FrameRef("drive", "", index, None, uri, SIZE)
    return LabeledFrame(frame, Boxes(boxes, [0.9] * count, ("car",) * count), masks)


@pytest.mark.ci
def test_truth_is_found_by_name(database: str, tmp_path: Path) -> None:
    name = f"truth {uuid.uuid4().hex[:8]}"
    prepare_dataset(name)
    frames = [
        labels("/data/a/0.jpg", 0, [(5, 5, 20), (50, 30, 20)]),  # one right, one off
        labels("/data/a/1.jpg", 1, []),
        labels("/data/b/0.jpg", 2, [(5, 5, 20)]),
    ]
    load_frames(name, frames, STAMP)
    coco = {
        "images": [
            {"id": i + 1, "file_name": file, "height": SIZE[0], "width": SIZE[1]}
            for i, file in enumerate(("a/0.jpg", "a/1.jpg", "c/0.jpg", "else.jpg"))
        ],
        "annotations": [
            {"id": i + 1, "image_id": image, "category_id": 1, "iscrowd": 0, "area": s * s,
             "bbox": [x, y, s, s], "segmentation": square(x, y, s)}
            for i, (image, x, y, s) in enumerate(
                [(1, 5, 5, 20), (1, 30, 5, 20), (2, 40, 20, 15), (3, 1, 1, 9), (4, 1, 1, 9)])
        ],
        "categories": [{"id": 1, "name": "car"}],
    }  # fmt: skip
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(coco))
    # "c/0.jpg" is none of the two: rather nowhere than on the wrong frame.
    assert load_truth(name, path) == 3
    dataset = schema.open_dataset(name)
    measured = open_truth(f"dataset:{name}.ground_truth", None).images  # for `autolabel evaluate`
    assert {(one.file_name, *one.area_px.tolist()) for one in measured} == {
        ("/data/a/0.jpg", 400, 400), ("/data/a/1.jpg", 225)
    }  # fmt: skip
    (second,) = (one for one in measured if one.file_name.endswith("1.jpg"))
    assert (second.labels, second.size_hw, second.sequence) == (("car",), SIZE, "drive")
    np.testing.assert_array_equal(second.boxes_xyxy_px, [[40, 20, 55, 35]])
    assert second.rle[0].decode() == square(40, 20, 15)["counts"]
    empty = {"ground_truth": {"_cls": "Detections", "detections": []}}
    samples = layout.sample_collection(dataset)
    assert samples.update_one({"ground_truth": None}, {"$set": empty}).modified_count == 1
    measured = open_truth(f"dataset:{name}.ground_truth", None).images
    assert sorted(map(len, measured)) == [0, 1, 2]  # what is found where nothing is, is false
    unnamed = {"ground_truth.detections.0.label": " "}
    samples.update_one({"filepath": "/data/a/0.jpg"}, {"$set": unnamed})
    measured = open_truth(f"dataset:{name}.ground_truth", None).images
    assert ["has no class" in one.unreadable for one in measured].count(True) == 1
    assert sorted(map(len, measured)) == [0, 0, 1]
    with pytest.raises(AutolabelError, match="has labels in its field previous"):
        open_truth(f"dataset:{name}.previous", None)
    with pytest.raises(AutolabelError, match=r"no field 'nothing' in the dataset; .* detections, "):
        open_truth(f"dataset:{name}.nothing", None)
    import fiftyone as fo

    Image.new("RGB", (40, 30)).save(tmp_path / "own.png")
    label = fo.Detection(
        label="van", bounding_box=[0.25, 0.5, 0.5, 0.5], mask=np.ones((3, 4), bool), index=7
    )
    sample = fo.Sample(str(tmp_path / "own.png"), truth=fo.Detections(detections=[label]))
    fo.Dataset(f"{name} v1.2").add_sample(sample)
    (own,) = open_truth(f"dataset:{name} v1.2.truth", None).images  # of somebody else's
    assert (own.labels, own.size_hw, own.area_px.tolist()) == (("van",), (30, 40), [300])
    assert own.track_ids.tolist() == [7]
    assert not own.boxes_alone
    # A field of boxes alone; one box has no area, so nothing may be said of its picture.
    sample["boxes"] = fo.Detections(
        detections=[fo.Detection(label="van", bounding_box=[0.25, 0.5, 0.5, 0.31])]
    )
    sample.save()
    other = fo.Sample(str(tmp_path / "other.png"), metadata=sample.metadata)
    other["boxes"] = fo.Detections(
        detections=[fo.Detection(label="van", bounding_box=[0.5, 0.5, 0, 0])]
    )
    Image.new("RGB", (40, 30)).save(tmp_path / "other.png")
    fo.load_dataset(f"{name} v1.2").add_sample(other)
    boxes, damaged = open_truth(f"dataset:{name} v1.2.boxes", None).images
    np.testing.assert_allclose(boxes.boxes_xyxy_px, [[10, 15, 30, 24.3]], rtol=1e-6)
    assert (boxes.boxes_alone, boxes.area_px.tolist()) == (True, [186])
    assert "no pixel in the picture" in damaged.unreadable
    wrong = {**coco["annotations"][0], "category_id": 9}
    path.write_text(json.dumps({**coco, "annotations": [wrong]}))
    with pytest.raises(AutolabelError, match=r"truth\.json: a/0\.jpg: annotation 1: category_id 9"):
        load_truth(name, path)
    coco["images"] = coco["images"][3:]
    path.write_text(json.dumps({**coco, "annotations": coco["annotations"][4:]}))
    with pytest.raises(AutolabelError, match="none of its 1 image is"):
        load_truth(name, path)
