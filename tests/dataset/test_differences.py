"""Before and after: what a new model changed, most changed labels first."""

import uuid
from dataclasses import replace

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from sam2_core.types import Boxes, Masks
from tasks.dataset import layout, schema
from tasks.load.into_fiftyone import prepare_dataset
from tasks.review.queue import CHANGED_FRAMES, CHANGED_LABELS, build_queue
from tasks.store.tables import LabeledFrame
from tests.review.labels import OTHER_STAMP, SIZE_HW, STAMP, labeled_frame, load_frames

# Class and box of each label before, and after: same, shrunk by a tenth, another class, gone, new.
BEFORE = [("car", (100, 100, 300, 300)), ("car", (400, 100, 600, 300)),
          ("car", (700, 100, 900, 300)), ("bus", (100, 400, 300, 600))]  # fmt: skip
AFTER = [("car", (100, 100, 300, 300)), ("car", (400, 100, 600, 280)),
         ("truck", (700, 100, 900, 300)), ("person", (1000, 400, 1100, 600))]  # fmt: skip


def frame(index: int, labels: list) -> LabeledFrame:
    """A frame of rectangles."""
    rle = []
    for _, (left, top, right, bottom) in labels:
        image = np.zeros(SIZE_HW, np.uint8, order="F")
        image[top:bottom, left:right] = 1
        rle.append(coco_mask.encode(image)["counts"])
    count = len(labels)
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for _, b in labels]
    masks = Masks(tuple(rle), SIZE_HW, [0.9] * count, [0.9] * count, [5] * count, areas,
                  ("",) * count)  # fmt: skip
    boxes = Boxes(np.array([box for _, box in labels], np.float32).reshape(-1, 4),
                  [0.9] * count, tuple(name for name, _ in labels))  # fmt: skip
    return LabeledFrame(labeled_frame(index).frame, boxes, masks)


@pytest.fixture
def name(database: str) -> str:
    name = f"differences {uuid.uuid4().hex[:8]}"
    prepare_dataset(name)
    load_frames(name, [frame(0, BEFORE[:2]), frame(1, BEFORE), frame(2, BEFORE)], STAMP)
    return name


def differences(name: str, frame_number: int, field: str) -> list[float]:
    sample = schema.open_dataset(name).match({"frame_number": frame_number}).first()
    return [round(one.difference, 3) for one in sample[field].detections]


def test_single_labels_are_compared_and_the_most_changed_come_first(name: str) -> None:
    after = [frame(0, AFTER[:2]), frame(1, AFTER), frame(2, BEFORE)]
    for _ in range(2):  # a second load of the new labels changes nothing
        load_frames(name, after, OTHER_STAMP)
        for field in ("detections", "previous"):
            found = [differences(name, number, field) for number in range(3)]
            assert found == [[0.0, 0.1], [0.0, 0.1, 1.0, 1.0], [0.0] * 4]
    dataset = schema.open_dataset(name)
    build_queue(dataset, 10)
    frames = dataset.load_saved_view(CHANGED_FRAMES)
    assert frames.values("frame_number") == [1, 0], "the third is unchanged"
    assert [len(one) for one in frames.values("detections.detections")] == [3, 1]
    now = dataset.load_saved_view(CHANGED_LABELS)
    assert sorted(now.values("detections.label")[:2]) == ["person", "truck"]
    assert [round(one, 2) for one in now.values("detections.difference")] == [1.0, 1.0, 0.1, 0.1]
    gone = [one.label for one in frames.first().previous.detections if one.difference == 1]
    assert sorted(gone) == ["bus", "car"]


def test_nothing_is_compared_without_a_run_before(name: str) -> None:
    sample = schema.open_dataset(name).first()
    assert (sample.difference, sample.previous) == (None, None)
    assert not hasattr(sample.detections.detections[0], "difference")
    # As FiftyOne's tab Annotate saves a frame.
    layout.sample_collection(schema.open_dataset(name)).update_many(
        {}, {"$set": {"previous_model": None}}
    )
    build_queue(schema.open_dataset(name), 10)
    assert CHANGED_FRAMES not in schema.open_dataset(name).list_saved_views()


def test_frames_that_lose_or_gain_everything(name: str) -> None:
    nothing = replace(frame(1, BEFORE), boxes=Boxes.empty(), masks=frame(1, []).masks)
    load_frames(name, [nothing], OTHER_STAMP)
    assert differences(name, 1, "previous") == [1.0] * 4
    load_frames(name, [frame(1, AFTER)], STAMP)
    assert differences(name, 1, "detections") == [1.0] * 4
