"""Holes, speckles, and pixels that several masks claim."""

from dataclasses import replace

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from flows.params import LabelParams
from sam2_core.types import Boxes, Masks
from tasks.masks.rules import TAKEN, MaskRules, tidied
from tasks.store.artifacts import find_chunk
from tasks.store.tables import LabeledFrame
from tests.pipeline.test_machine_errors import (
    chunk_of,
    job_of,
    label_chunk,
    source,
    with_params,
)

__all__ = ["source"]  # the fixture

SIZE_HW = (60, 80)


def masks_of(*pixels):
    """Masks of whole images of zeros and ones."""
    rle = tuple(coco_mask.encode(np.asfortranarray(one, np.uint8))["counts"] for one in pixels)
    ones = np.ones(len(pixels), np.float32)
    areas = np.array([int(one.sum()) for one in pixels], np.int64)
    return Masks(rle, SIZE_HW, ones, ones, ones, areas, ("",) * len(pixels))


def boxes_of(count, scores=None, bottoms=None):
    px = np.tile(np.array([0, 0, 80, 60], np.float32), (count, 1))
    px[:, 3] = bottoms or 60
    return Boxes(px, scores or [0.5] * count, ("car",) * count)


def pixels(masks):
    return [coco_mask.decode({"counts": one, "size": list(SIZE_HW)}) for one in masks.rle]


def block(top, left, bottom, right):
    mask = np.zeros(SIZE_HW, np.uint8)
    mask[top:bottom, left:right] = 1
    return mask


def test_small_holes_are_filled_and_small_pieces_removed_and_large_ones_stay():
    body, speck, piece = block(5, 5, 45, 45), block(50, 60, 52, 62), block(0, 60, 20, 79)
    hole, window = block(10, 10, 12, 12), block(20, 20, 40, 40)
    at_the_border = block(0, 0, 60, 80) - block(0, 30, 2, 32)
    given = masks_of(
        body + speck + piece - hole - window, body, block(0, 0, 0, 0), at_the_border
    )  # fmt: skip
    made = tidied(given, boxes_of(4), MaskRules(clean=0.02))
    first, second, empty, border = pixels(made)
    np.testing.assert_array_equal(first, body + piece - window)
    assert made.area_px.tolist() == [int(one.sum()) for one in pixels(made)]
    assert second.sum() == body.sum()
    assert not empty.any()
    np.testing.assert_array_equal(border, at_the_border), "what is open to the outside is no hole"
    assert made.rle[1:] == given.rle[1:]


@pytest.mark.parametrize("seed", range(4))
def test_random_masks_are_written_as_coco_writes_them(seed):
    rng = np.random.default_rng(seed)
    noise = [(rng.random(SIZE_HW) < share).astype(np.uint8) for share in (0.02, 0.4, 0.7, 0.97)]
    for rules in (MaskRules(clean=0.001), MaskRules(0.01, "score"), MaskRules(0, "depth")):
        made = tidied(masks_of(*noise), boxes_of(4, [0.1, 0.2, 0.3, 0.4]), rules)
        for one, text, area in zip(pixels(made), made.rle, made.area_px, strict=True):
            assert coco_mask.encode(np.asfortranarray(one))["counts"] == text
            assert one.sum() == area


def test_a_contested_pixel_is_one_masks():
    one, other, third = block(0, 0, 40, 40), block(20, 20, 60, 60), block(25, 0, 35, 80)
    given = masks_of(one, other, third)
    boxes = boxes_of(3, scores=[0.9, 0.5, 0.7], bottoms=[40, 60, 35])
    by_score = pixels(tidied(given, boxes, MaskRules(overlap="score")))
    assert np.sum(by_score, axis=0).max() == 1
    np.testing.assert_array_equal(by_score[0], one)
    np.testing.assert_array_equal(by_score[2], third * (1 - one))
    np.testing.assert_array_equal(by_score[1], other * (1 - one) * (1 - third))
    by_depth = pixels(tidied(given, boxes, MaskRules(overlap="depth")))
    np.testing.assert_array_equal(by_depth[1], other), "the one that reaches furthest down"
    assert np.sum(by_depth, axis=0).max() == 1
    equal = pixels(tidied(masks_of(one, one), boxes_of(2), MaskRules(overlap="score")))
    assert equal[0].sum() == one.sum()
    assert not equal[1].any()
    assert tidied(masks_of(one, one), boxes_of(2), MaskRules(overlap="score")).reasons[1] == TAKEN


def test_pieces_that_an_overlap_cuts_off_are_cleaned_too():
    """A neck below another mask joins a few pixels to the rest, until it is the other's."""
    bar, body, neck = block(10, 0, 20, 80), block(20, 0, 60, 30), block(8, 10, 20, 12)
    given = masks_of(bar, np.maximum(body, neck))
    boxes = boxes_of(2, scores=[0.9, 0.5])
    rules = MaskRules(clean=0.02, overlap="score")
    np.testing.assert_array_equal(pixels(tidied(given, boxes, rules))[1], body)
    left = pixels(tidied(given, boxes, MaskRules(overlap="score")))[1]
    assert left.sum() == body.sum() + 4


def test_a_speck_behind_an_empty_column_is_removed():
    body, speck = block(10, 10, 50, 50), block(20, 52, 21, 54)
    torn = body - block(10, 30, 11, 31) + speck  # as many runs as columns, and a column without
    (made,) = pixels(tidied(masks_of(torn), boxes_of(1), MaskRules(clean=0.02)))
    assert not made[:, 50:].any()


def test_rules_that_are_off_change_neither_masks_nor_keys():
    given = masks_of(block(0, 0, 9, 9))
    assert tidied(given, boxes_of(1), MaskRules()) is given
    plain = LabelParams(sources=("/in",), out="/out")
    assert plain.deciding() == {"classes": [], "min_score": 0.25}
    chosen = plain.model_copy(update={"clean_masks": 0.01, "overlap": "depth"}).deciding()
    assert chosen == {**plain.deciding(), "clean_masks": 0.01, "overlap": "depth"}


def test_the_labels_of_a_run_are_tidied_as_it_was_told(source, monkeypatch):
    made = masks_of(block(0, 0, 40, 40), block(20, 20, 60, 60))
    boxes = boxes_of(2, scores=[0.9, 0.5])

    def segmented(_, todo, *__, **___):
        return [LabeledFrame(replace(frame, size_hw=SIZE_HW), boxes, made) for frame, _ in todo]

    monkeypatch.setattr("tasks.masks.segment.segment_frames", segmented)
    for rules, contested in ((MaskRules(), 400), (MaskRules(overlap="score"), 0)):
        job = job_of(source, imported=True)
        job = with_params(job, overlap=rules.overlap, out=str(source / (rules.overlap)))
        chunk = chunk_of(job, source)
        assert label_chunk(job, chunk).record
        labeled = find_chunk(job.params.out, chunk).labeled
        masks = [pixels(one.masks) for one in labeled]
        assert [(one & other).sum() for one, other in masks] == [contested] * len(labeled)
