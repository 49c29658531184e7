"""Windows around boxes: nothing of a mask is lost, whatever its size and place."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sam2_core.batching import decode_in_windows
from sam2_core.types import LowResMasks, Prompts

CELLS = 32
GRID = 4 * CELLS
SIDES = (8, 16)
LABELS = np.array([2, 3, -1], np.int32)


def boxes(xyxy):
    corners = np.array(xyxy, np.float32).reshape(-1, 2, 2)
    count = len(corners)
    points = np.concatenate([corners, np.zeros((count, 1, 2), np.float32)], 1)
    return Prompts(points, np.tile(LABELS, (count, 1)), np.zeros(count, np.int64))


class Painter:
    """A decoder whose masks are given: rows of logits (P, GRID, GRID), told apart by the box."""

    def __init__(self, prompts, masks):
        self.prompts, self.masks, self.calls = prompts, masks, []

    def __call__(self, some, side, window_yx):
        self.calls.append((side, len(some)))
        rows = [
            np.flatnonzero((self.prompts.points_model == one).all((1, 2)))[0]
            for one in some.points_model
        ]
        logits = self.masks[rows]
        if side:
            assert (window_yx >= 0).all()
            assert (window_yx + side <= CELLS).all()
            logits = np.stack([
                mask[4 * y : 4 * (y + side), 4 * x : 4 * (x + side)]
                for mask, (y, x) in zip(logits, window_yx, strict=True)
            ])  # fmt: skip
        marks = np.array(rows, np.float32)
        origin = np.zeros((len(rows), 2), np.int32)
        return LowResMasks(logits, origin, (GRID, GRID), marks, marks + 0.5, marks + 0.25)


def whole(low_res):
    full = np.full((len(low_res.predicted_iou), GRID, GRID), -9.0, np.float32)
    for row, (window, (y, x)) in enumerate(zip(low_res.logits, low_res.origin_yx, strict=True)):
        full[row, y : y + window.shape[0], x : x + window.shape[1]] = window
    return full


coordinate = st.integers(0, 511)  # a valid box has pixels in the image
box = st.tuples(coordinate, coordinate, coordinate, coordinate).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]) + 1, max(b[1], b[3]) + 1)
)


@given(st.lists(box, min_size=1, max_size=12, unique=True), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_masks_come_out_whole_and_in_order(xyxy, seed):
    prompts = boxes(xyxy)
    generator = np.random.default_rng(seed)
    masks = np.full((len(xyxy), GRID, GRID), -9.0, np.float32)
    for mask in masks:  # anywhere, not only in the box
        y, x = generator.integers(0, GRID - 1, 2)
        h, w = generator.integers(1, GRID, 2)
        mask[y : y + h, x : x + w] = 5
    # A mask wholly outside its box's window is not seen; real ones begin in their box.
    for mask, (x1, y1, x2, y2) in zip(masks, xyxy, strict=True):
        mask[y1 // 4 : y2 // 4 + 1, x1 // 4 : x2 // 4 + 1] = 5
        joined = np.flatnonzero((mask > 0).any(1))
        mask[joined[0] : joined[-1] + 1, x1 // 4 : x2 // 4 + 1] = 5
        joined = np.flatnonzero((mask > 0).any(0))
        mask[y1 // 4 : y2 // 4 + 1, joined[0] : joined[-1] + 1] = 5
    got = decode_in_windows(prompts, Painter(prompts, masks), SIDES, CELLS)
    np.testing.assert_array_equal(whole(got), masks)
    np.testing.assert_array_equal(got.predicted_iou, np.arange(len(xyxy)))
    np.testing.assert_array_equal(got.object_score, np.arange(len(xyxy)) + 0.5)
    np.testing.assert_array_equal(got.stability, np.arange(len(xyxy)) + 0.25)


def test_a_mask_that_stays_inside_is_decoded_once_and_one_that_grows_again():
    prompts = boxes([[100, 100, 130, 140], [300, 300, 330, 330]])
    masks = np.full((2, GRID, GRID), -9.0, np.float32)
    masks[0, 26:34, 26:32] = 5
    masks[1, 60:100, 75:82] = 5
    painter = Painter(prompts, masks)
    decode_in_windows(prompts, painter, SIDES, CELLS)
    assert painter.calls == [(8, 2), (16, 1)]
