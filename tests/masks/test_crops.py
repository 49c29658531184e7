"""Crops from run lengths, against pycocotools and FiftyOne's own reader."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from tasks.masks.crops import crop_windows, crops_of, masks_of, npy_zlib


def encode(mask: np.ndarray) -> bytes:
    return coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_crops_equal_the_decoded_image(height: int, width: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    share = rng.choice([0.0, 0.02, 0.5, 0.98, 1.0], count)
    masks = [rng.random((height, width)) < share[i] for i in range(count)]
    boxes = rng.uniform(-5, 45, (count, 4)).astype(np.float32)
    crops = crops_of(boxes, [encode(mask) for mask in masks], (height, width))
    found = zip(masks, crops.windows_xyxy_px, crops.masks, strict=True)
    for mask, (left, top, right, bottom), crop in found:
        assert np.array_equal(mask[top:bottom, left:right], crop)
        assert crop.sum() == mask.sum(), "nothing outside the window"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("box", "bounds", "window"),
    [
        ([10.4, 5.5, 20.2, 8.1], [18, 2, 25, 4], [10, 2, 25, 9]),
        ([np.nan, 0, 1, 1], [3, 3, 5, 6], [3, 3, 5, 6]),
        ([30, 30, 20, 20], [0] * 4, [0] * 4),
        ([-9, -9, -1, -1], [0] * 4, [0] * 4),
        ([-1e30, 3, 1e30, 9], [0] * 4, [0, 3, 60, 9]),
        ([1e30, 3, 2e30, 9], [0] * 4, [0] * 4),
    ],
)
def test_windows_hold_box_and_mask_and_survive_bad_boxes(box, bounds, window) -> None:
    windows = crop_windows(np.array([box], np.float32), np.array([bounds]), (50, 60))
    assert windows.tolist() == [window]


def test_damaged_run_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="no run lengths of 3x3 pixels"):
        masks_of([encode(np.ones((9, 9)))], (3, 3))


def test_fiftyone_reads_our_masks(database: str) -> None:
    import fiftyone.core.utils as fou

    rng = np.random.default_rng(1)
    for shape in ((1, 1), (3, 200), (1200, 7), (94, 146)):
        mask = rng.random(shape) < 0.5
        read = fou.deserialize_numpy_array(npy_zlib(mask))
        assert read.dtype == bool
        assert np.array_equal(read, mask)
