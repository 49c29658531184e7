"""Values that carry arrays refuse a wrong form when they are made, and are never written to."""

import warnings

import numpy as np
import pytest

from sam2_core.preprocess import StagedFrame
from sam2_core.types import Boxes, LowResMasks, Masks, Prompts

F, I32, I64 = np.float32, np.int32, np.int64


def boxes(**other):
    given = {"xyxy_px": np.zeros((2, 4), F), "scores": np.ones(2, F), "labels": ("car", "bus")}
    return Boxes(**given | other)


def prompts(**other):
    given = {
        "points_model": np.zeros((2, 3, 2), F), "labels": np.zeros((2, 3), I32),
        "image_index": np.zeros(2, I64),
    }  # fmt: skip
    return Prompts(**given | other)


def masks(**other):
    ones = np.ones(2, F)
    given = {
        "rle": (b"1", b"1"), "size_hw": (1, 1), "predicted_iou": ones, "stability": ones,
        "object_score": ones, "area_px": np.ones(2, I64), "reasons": ("", ""),
    }  # fmt: skip
    return Masks(**given | other)


def low_res(**other):
    ones = np.ones(2, F)
    given = {
        "logits": np.zeros((2, 4, 4), F), "predicted_iou": ones, "object_score": ones,
        "stability": ones,
    }  # fmt: skip
    return LowResMasks(**given | other)


def frame(pixels):
    return StagedFrame(pixels)


@pytest.mark.parametrize(
    ("make", "field", "wrong", "words"),
    [
        (boxes, "xyxy_px", np.zeros((4, 2), F),
         "Boxes.xyxy_px: expected float32 (N, 4) with N = 2, got float32 (4, 2)"),
        (boxes, "xyxy_px", np.zeros(8, F),
         "Boxes.xyxy_px: expected float32 (N, 4) with N = 2, got float32 (8,)"),
        (boxes, "scores", ["0.5", "0.5"],
         "Boxes.scores: expected float32 (N) with N = 2, got <U3 (2,)"),
        (boxes, "track_ids", [1.5, 2.0],
         "Boxes.track_ids: expected int64 (N) with N = 2, got float64 (2,)"),
        (boxes, "labels", "no", "Boxes.labels: expected tuple (N), got str"),
        (boxes, "labels", b"no", "Boxes.labels: expected tuple (N), got bytes"),
        (boxes, "labels", {"car", "bus"}, "Boxes.labels: expected tuple (N), got set"),
        (boxes, "labels", 2, "Boxes.labels: expected tuple (N), got int"),
        (boxes, "labels", None, "Boxes.labels: expected tuple (N), got NoneType"),
        (boxes, "scores", None, "Boxes.scores: expected float32 (N) with N = 2, got NoneType"),
        (masks, "reasons", "ok", "Masks.reasons: expected tuple (N) with N = 2, got str"),
        (boxes, "labels", ("car",), "Boxes.xyxy_px: expected float32 (N, 4) with N = 1"),
        (masks, "area_px", np.ones(3, I64),
         "Masks.area_px: expected int64 (N) with N = 2, got int64 (3,)"),
        (masks, "reasons", ("",), "Masks.reasons: expected tuple (N) with N = 2, got tuple of 1"),
        (prompts, "points_model", np.zeros((2, 3, 2)),
         "Prompts.points_model: expected float32 (P, K, 2), got float64 (2, 3, 2)"),
        (prompts, "labels", np.zeros((2, 4), I32),
         "Prompts.labels: expected int32 (P, K) with P = 2, K = 3, got int32 (2, 4)"),
        (prompts, "image_index", [0, 0],
         "Prompts.image_index: expected int64 (P) with P = 2, got list"),
        (prompts, "mask_logits", np.zeros((2, 4, 5), F),
         "Prompts.mask_logits: expected float32 (P, G, G) with P = 2, got float32 (2, 4, 5)"),
        (low_res, "logits", np.zeros((2, 4, 4), I64),
         "LowResMasks.logits: expected float (P, G, G), got int64 (2, 4, 4)"),
        (frame, "pixels", np.zeros((4, 6), np.uint8),
         "StagedFrame.pixels: expected uint8 (H, W, 3), got uint8 (4, 6)"),
    ],
)  # fmt: skip
def test_a_wrong_form_is_refused_by_name(make, field, wrong, words):
    with pytest.raises(ValueError, match="expected") as refused:
        make(**{field: wrong})
    assert str(refused.value).startswith(words)


def test_values_that_callers_make_by_hand_are_converted_and_copied():
    corners = np.array([[0, 0, 4, 4]])
    one = Boxes(corners, [1], ["car"], track_ids=np.array([7], I32))
    corners[:] = 9
    assert (one.xyxy_px.dtype, one.xyxy_px.tolist()) == (F, [[0, 0, 4, 4]])
    assert (one.track_ids.dtype, one.labels) == (I64, ("car",))
    assert len(Boxes([], [], [])) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(Boxes([[0, 0, 1e308, 4]], [1], ["car"]).xyxy_px[0, 2])


@pytest.mark.parametrize("value", [boxes(), masks(), Boxes.empty()])
def test_rows_have_no_truth_value(value):
    """None and no rows are two answers."""
    with pytest.raises(TypeError, match=r"has no truth value: ask for its len\(\)"):
        bool(value)


@pytest.mark.parametrize("make", [boxes, masks, prompts, low_res])
def test_nobody_writes_to_an_array_of_a_value(make):
    value = make()
    arrays = [part for part in vars(value).values() if isinstance(part, np.ndarray)]
    assert arrays
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1


def test_a_devices_buffer_is_not_copied_and_stays_the_devices():
    buffer = np.zeros((2, 4, 4), np.float16)
    value = low_res(logits=buffer)
    assert np.shares_memory(value.logits, buffer)
    buffer[:] = 1
    assert value.logits.max() == 1
