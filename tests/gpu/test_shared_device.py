"""A detector and a mask model of one process on a real GPU: frames, memory and captures."""

import numpy as np
import pytest

from sam2_core.load import load_backend
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes
from tasks.boxes.detectors import load_detector

pytestmark = pytest.mark.gpu

ONNXRUNTIME = "onnxruntime-cuda"
BOXES = Boxes([[100, 90, 400, 300], [600, 200, 760, 500], [5, 5, 40, 30]], np.ones(3), ("car",) * 3)


def frames(count):
    return list(np.random.default_rng(0).integers(0, 256, (count, 540, 960, 3)).astype(np.uint8))


def test_masks_of_frames_that_the_detector_had_are_those_of_frames_read_again():
    detector, images = load_detector("compact", backend=ONNXRUNTIME), frames(11)
    seen = [detector.letterbox(image) for image in images]
    found = [boxes for start in (0, 8) for boxes in detector.detect(seen[start : start + 8])]
    assert len(found) == len(images)
    uploaded = [one.pixels.on_device for one in seen]
    assert None not in uploaded
    backend = load_backend("compact", ONNXRUNTIME, "fp16")
    with Segmenter(backend) as segmenter:
        kept = segmenter.run([segmenter.prepare(one.pixels, BOXES) for one in seen])
        again = segmenter.run([segmenter.prepare(image, BOXES) for image in images])
    assert [one.pixels.on_device for one in seen] == uploaded
    for one, other in zip(kept, again, strict=True):
        np.testing.assert_array_equal(one.logits, other.logits)
