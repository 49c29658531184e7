"""Frames and boxes to labeled frames."""

import numpy as np

from sam2_core.segmenter import Segmenter
from sam2_core.types import AutolabelError, Boxes
from tasks.masks.segment import UNSCORED, segment_frames
from tasks.types import FrameRef
from tests.sam2_core.fake_backend import FakeDeviceBackend


def test_every_frame_becomes_a_labeled_frame_with_its_boxes():
    frames = [FrameRef("drive", "front", i, None, f"file:///{i}.jpg") for i in range(6)]
    boxes = [Boxes(np.tile([[5, 5, 60, 60]], (i, 1)), np.ones(i), ("car",) * i) for i in range(6)]

    def read_image(frame):
        if frame.index == 3:
            raise AutolabelError(f"{frame.uri}: the JPEG is truncated")
        return np.full((80, 90, 3), frame.index, np.uint8)

    with Segmenter(FakeDeviceBackend()) as segmenter:
        labeled = list(segment_frames(segmenter, zip(frames, boxes, strict=True), read_image))
    assert [item.frame.index for item in labeled] == list(range(6))
    assert [len(item.boxes) for item in labeled] == list(range(6))
    assert [item.masks is None for item in labeled] == [i == 3 for i in range(6)]
    assert labeled[3].failure.reason == "file:///3.jpg: the JPEG is truncated"
    assert (labeled[3].failure.stage, labeled[3].failure.index) == ("read", 3)
    assert labeled[5].frame.size_hw == (80, 90)
    assert labeled[5].masks.predicted_iou.tolist() == [5] * 5


def test_a_box_whose_score_is_no_number_is_a_row_with_the_reason():
    scores = np.array([0.5, np.nan, np.inf, -1, 2.5], np.float32)
    places = np.tile([[5, 5, 60, 60]], (5, 1))
    boxes = Boxes(places, scores, ("car",) * 5)
    frame = FrameRef("drive", "", 0, None, "file:///0.jpg")
    with Segmenter(FakeDeviceBackend()) as segmenter:
        (labeled,) = segment_frames(
            segmenter, [(frame, boxes)], lambda _: np.zeros((80, 90, 3), np.uint8)
        )
    assert labeled.masks.reasons == ("", UNSCORED, UNSCORED, "", "")
    assert (labeled.masks.area_px > 0).tolist() == [True, False, False, True, True]
    np.testing.assert_equal(labeled.boxes.xyxy_px, places.astype(np.float32))
    np.testing.assert_equal(labeled.boxes.scores, scores)
