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
from tasks.dataset.coco_truth import TruthImage
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


COCO = {
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


@pytest.fixture(scope="module")
def name(database: str) -> str:
    """A dataset of three frames, and no truth yet."""
    name = f"truth {uuid.uuid4().hex[:8]}"
    prepare_dataset(name)
    frames = [
        labels("/data/a/0.jpg", 0, [(5, 5, 20), (50, 30, 20)]),  # one right, one off
        labels("/data/a/1.jpg", 1, []),
        labels("/data/b/0.jpg", 2, [(5, 5, 20)]),
    ]
    load_frames(name, frames, STAMP)
    return name


@pytest.fixture
def with_truth(name: str, tmp_path: Path) -> str:
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(COCO))
    # "c/0.jpg" is none of the two: rather nowhere than on the wrong frame.
    assert load_truth(name, path) == 3
    return name


def truth_of(name: str, field: str = "ground_truth") -> tuple[TruthImage, ...]:
    """What `autolabel evaluate` measures with."""
    return open_truth(f"dataset:{name}.{field}", None).images


def test_truth_is_found_by_name(with_truth: str) -> None:
    measured = truth_of(with_truth)
    assert {(one.file_name, *one.area_px.tolist()) for one in measured} == {
        ("/data/a/0.jpg", 400, 400), ("/data/a/1.jpg", 225)
    }  # fmt: skip
    (second,) = (one for one in measured if one.file_name.endswith("1.jpg"))
    assert (second.labels, second.size_hw, second.sequence) == (("car",), SIZE, "drive")
    np.testing.assert_array_equal(second.boxes_xyxy_px, [[40, 20, 55, 35]])
    assert second.rle[0].decode() == square(40, 20, 15)["counts"]


def test_a_truth_of_nothing_counts_and_one_without_a_class_is_unreadable(with_truth: str) -> None:
    samples = layout.sample_collection(schema.open_dataset(with_truth))
    empty = {"ground_truth": {"_cls": "Detections", "detections": []}}
    samples.update_one({"filepath": "/data/b/0.jpg"}, {"$set": empty})
    assert sorted(map(len, truth_of(with_truth))) == [0, 1, 2]  # what is found there is false
    unnamed = {"ground_truth.detections.0.label": " "}
    samples.update_one({"filepath": "/data/a/0.jpg"}, {"$set": unnamed})
    measured = truth_of(with_truth)
    assert ["has no class" in one.unreadable for one in measured].count(True) == 1
    assert sorted(map(len, measured)) == [0, 0, 1]


@pytest.mark.parametrize(
    ("field", "words"),
    [("previous", "has labels in its field previous"),
     ("nothing", r"no field 'nothing' in the dataset; .* detections, ")],
)  # fmt: skip
def test_a_field_without_labels_is_no_truth(name: str, field: str, words: str) -> None:
    with pytest.raises(AutolabelError, match=words):
        truth_of(name, field)


@pytest.mark.ci
def test_a_dataset_of_somebody_else_is_a_truth_with_masks_or_with_boxes_alone(
    name: str, tmp_path: Path
) -> None:
    import fiftyone as fo

    def sample(picture: str, **fields: fo.Detection) -> fo.Sample:
        Image.new("RGB", (40, 30)).save(tmp_path / picture)
        labels = {name: fo.Detections(detections=[one]) for name, one in fields.items()}
        return fo.Sample(str(tmp_path / picture), **labels)

    mask = np.ones((3, 4), bool)
    masked = fo.Detection(label="van", bounding_box=[0.25, 0.5, 0.5, 0.5], mask=mask, index=7)
    boxed = fo.Detection(label="van", bounding_box=[0.25, 0.5, 0.5, 0.31])
    # One box has no area, so nothing may be said of its picture.
    no_area = fo.Detection(label="van", bounding_box=[0.5, 0.5, 0, 0])
    other = f"{name} v1.2"
    fo.Dataset(other).add_samples(
        [sample("own.png", truth=masked, boxes=boxed), sample("other.png", boxes=no_area)]
    )
    (own,) = truth_of(other, "truth")
    assert (own.labels, own.size_hw, own.area_px.tolist()) == (("van",), (30, 40), [300])
    assert own.track_ids.tolist() == [7]
    assert not own.boxes_alone
    boxes, damaged = truth_of(other, "boxes")
    np.testing.assert_allclose(boxes.boxes_xyxy_px, [[10, 15, 30, 24.3]], rtol=1e-6)
    assert (boxes.boxes_alone, boxes.area_px.tolist()) == (True, [186])
    assert "no pixel in the picture" in damaged.unreadable


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"annotations": [{**COCO["annotations"][0], "category_id": 9}]},
         r"truth\.json: a/0\.jpg: annotation 1: category_id 9"),
        ({"images": COCO["images"][3:], "annotations": COCO["annotations"][4:]},
         "none of its 1 image is"),
    ],
)  # fmt: skip
def test_a_truth_that_is_damaged_or_of_other_frames_is_refused(
    name: str, tmp_path: Path, change: dict, words: str
) -> None:
    path = tmp_path / "truth.json"
    path.write_text(json.dumps({**COCO, **change}))
    with pytest.raises(AutolabelError, match=words):
        load_truth(name, path)
