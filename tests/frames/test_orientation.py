"""Boxes turn as pixels do, and as Pillow turns them."""

import numpy as np
import pytest
from PIL import Image, ImageOps

from tasks.frames.images import shown_size, turn_boxes, turn_pixels


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_stays_around_what_it_was_around(orientation):
    stored = np.zeros((40, 60, 3), np.uint8)
    stored[5:12, 20:31] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(stored)
    image.info["exif"] = exif.tobytes()
    shown = turn_pixels(stored, orientation)
    np.testing.assert_array_equal(shown, np.asarray(ImageOps.exif_transpose(image)))
    assert shown.shape[:2] == shown_size((40, 60), orientation)
    rows, columns = np.nonzero(shown[:, :, 0])
    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    boxes = np.float32([[20, 5, 31, 12], [np.nan] * 4])
    turned = turn_boxes(boxes, (40, 60), orientation)
    np.testing.assert_array_equal(turned, [box, [np.nan] * 4])
    assert turned.dtype == np.float32
