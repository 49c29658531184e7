"""Frames and boxes to labeled frames."""

import numpy as np

from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes
from tasks.masks.segment import UNSCORED, segment_frames
from tasks.types import FrameRef
from tests.sam2_core.fake_backend import FakeDeviceBackend


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
