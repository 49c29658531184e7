"""Images enter the library by one check, which says what was expected and what came."""

import numpy as np
import pytest
from PIL import Image

from sam2_core.clicks import OpenImage
from sam2_core.segmenter import Segmenter
from sam2_core.serving.client import Requests
from sam2_core.serving.contract import RequestTensors
from sam2_core.types import Boxes
from tests.sam2_core.fake_backend import FakeDeviceBackend

PICTURE = np.full((40, 60, 3), 90, np.uint8)
ONE_BOX = Boxes([[5, 5, 30, 30]], [1.0], ("car",))
NO_BOX = Boxes([], [], ())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (PICTURE.transpose(2, 0, 1), r"uint8 \(3, 40, 60\)"),
        (PICTURE / np.float32(255), r"float32 \(40, 60, 3\)"),
        (PICTURE.astype(np.uint16), r"uint16 \(40, 60, 3\)"),
        (PICTURE > 80, r"bool \(40, 60, 3\)"),
        (PICTURE[..., 0], r"uint8 \(40, 60\)"),
        (np.dstack([PICTURE, PICTURE[..., :1]]), r"uint8 \(40, 60, 4\)"),
        (PICTURE[None], r"uint8 \(1, 40, 60, 3\)"),
        (PICTURE[:0], r"uint8 \(0, 60, 3\)"),
        (Image.fromarray(PICTURE), "Image"),
        (PICTURE.tolist(), "list"),
        ("frame.jpg", "str"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_image_is_told_before_anything_else(given, told):
    says = rf"expected an image, a uint8 array \(height, width, 3\) in RGB .*, got {told}$"
    for close_ups in (True, False):
        backend = FakeDeviceBackend(close_ups=close_ups)
        for boxes in (ONE_BOX, NO_BOX, "no boxes"):
            with Segmenter(backend) as segmenter, pytest.raises(ValueError, match=says):
                segmenter.segment([given], [boxes])
        with pytest.raises(ValueError, match=says):
            OpenImage(backend, given)
    if isinstance(given, np.ndarray) and given.dtype == np.uint8:  # a server is sent no others
        with pytest.raises(ValueError, match=says):
            RequestTensors({"image": given[None]}.get).image()


def test_a_client_sends_only_images():
    pytest.importorskip("tritonclient")
    requests = Requests("grpc://127.0.0.1:1", "compact", 1, (0, 0))
    for given in ("frame.jpg", PICTURE.transpose(2, 0, 1)):
        with pytest.raises(ValueError, match="expected an image"):
            requests.set_image(given)
    requests.close()


@pytest.mark.parametrize(
    ("images", "boxes", "told"),
    [
        ([PICTURE], [[[5, 5, 30, 30]]], "expected Boxes of the image, got list"),
        ([PICTURE], [ONE_BOX.xyxy_px], "expected Boxes of the image, got ndarray"),
        ([PICTURE], ONE_BOX, "got 1 images and Boxes of 1"),
        (PICTURE, [ONE_BOX], "got 40 images and list of 1"),
    ],
)
def test_what_are_no_boxes_is_told(images, boxes, told):
    with Segmenter(FakeDeviceBackend()) as segmenter, pytest.raises(ValueError, match=told):
        segmenter.segment(images, boxes)
