"""Crops from run lengths, against pycocotools and FiftyOne's own reader."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from tasks.masks.crops import crop_windows, npy_zlib, paint, segments_of


def encode(mask: np.ndarray) -> bytes:
    return coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_crops_equal_the_decoded_image(height: int, width: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    share = rng.choice([0.0, 0.02, 0.5, 0.98, 1.0], count)
    masks = [rng.random((height, width)) < share[i] for i in range(count)]
    boxes = rng.uniform(-5, 45, (count, 4)).astype(np.float32)
    segments = segments_of([encode(mask) for mask in masks], (height, width))
    windows = crop_windows(boxes, segments.bounds_xyxy_px(), (height, width))
    crops = paint(segments, windows)
    assert segments.areas_px().tolist() == [int(mask.sum()) for mask in masks]
    for mask, (left, top, right, bottom), crop in zip(masks, windows, crops, strict=True):
        assert np.array_equal(mask[top:bottom, left:right], crop)
        assert crop.sum() == mask.sum(), "nothing outside the window"


def test_large_counts_and_columns_that_run_on() -> None:
    mask = np.zeros((1860, 2880), bool)
    mask[:, 700:1400] = True
    mask[900:, 2000] = mask[:10, 2001] = True
    segments = segments_of([encode(mask)], mask.shape)
    windows = crop_windows(np.zeros((1, 4), np.float32), segments.bounds_xyxy_px(), mask.shape)
    assert windows.tolist() == [[700, 0, 2002, 1860]]
    assert np.array_equal(paint(segments, windows)[0], mask[:, 700:2002])


def test_windows_hold_box_and_mask_and_survive_bad_boxes() -> None:
    boxes = np.array(
        [[10.4, 5.5, 20.2, 8.1], [np.nan, 0, 1, 1], [30, 30, 20, 20], [-9, -9, -1, -1]], np.float32
    )
    bounds = np.array([[18, 2, 25, 4], [3, 3, 5, 6], [0, 0, 0, 0], [0, 0, 0, 0]])
    windows = crop_windows(boxes, bounds, (50, 60))
    assert windows.tolist() == [[10, 2, 25, 9], [3, 3, 5, 6], [0, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.filterwarnings("error")
def test_boxes_that_no_whole_number_holds_are_cut_like_others() -> None:
    boxes = np.array([[-1e30, 3, 1e30, 9], [1e30, 3, 2e30, 9]], np.float32)
    windows = crop_windows(boxes, np.zeros((2, 4), np.int64), (50, 60))
    assert windows.tolist() == [[0, 3, 60, 9], [0, 0, 0, 0]]


def test_damaged_run_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="damaged"):
        segments_of([encode(np.ones((9, 9)))], (3, 3))


def test_fiftyone_reads_our_masks(database: str) -> None:
    import fiftyone.core.utils as fou

    rng = np.random.default_rng(1)
    for shape in ((1, 1), (3, 200), (1200, 7), (94, 146)):
        mask = rng.random(shape) < 0.5
        read = fou.deserialize_numpy_array(npy_zlib(mask))
        assert read.dtype == bool
        assert np.array_equal(read, mask)
