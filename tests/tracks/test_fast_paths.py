"""What is computed for many masks and pairs at once is what is computed for one after another."""

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from sam2_core.types import Masks
from tasks.risk.geometry import box_iou_rows
from tasks.tracks import linking
from tasks.tracks.linking import GRID, WORDS, extents_of, placed_ious, placed_px, shapes_of

SIZE_HW = (60, 90)
SEEDS = range(6)


def drawn(shape, box, points):
    """Take a mask at points of the image one axis after the other."""
    cell = np.floor((points - box[:2]) / (box[2:] - box[:2]).clip(1e-6) * GRID).astype(np.int64)
    inside = (cell >= 0) & (cell < GRID)
    column, row = cell.clip(0, GRID - 1).T
    bits = np.unpackbits(shape.view(np.uint8)).reshape(GRID, GRID).astype(bool)
    return bits[row][:, column] & inside[:, 1][:, None] & inside[:, 0][None]


def placed_iou(first, first_box, second, box):
    """IoU of one pair, each mask drawn point by point."""
    low, high = np.minimum(first_box[:2], box[:2]), np.maximum(first_box[2:], box[2:])
    points = low + (np.arange(48)[:, None] + 0.5) / 48 * (high - low)
    one, other = drawn(first, first_box, points), drawn(second, box, points)
    union = int((one | other).sum())
    return (one & other).sum() / union if union else 0.0


def random_shapes(rng, count):
    """Noise, solid rectangles, full and empty masks, in any order."""
    grids = rng.random((count, GRID, GRID)) < rng.random((count, 1, 1))
    for grid, kind in zip(grids, rng.integers(0, 4, count), strict=True):
        if kind:
            top, left = rng.integers(0, GRID, 2)
            grid[:] = kind == 1
            grid[top : top + 20, left : left + 20] |= kind == 2
    return np.packbits(grids.reshape(count, -1), axis=1).view(np.uint64).reshape(count, WORDS)


def random_boxes(rng, count):
    """Boxes of any size, many over each other; some lie on whole pixels or beyond the image."""
    corner = rng.uniform(-15, 80, (count, 2))
    sides = rng.uniform(0.3, 50, (count, 2)) ** rng.choice([1, 0.3], (count, 1))
    boxes = np.hstack([corner, corner + sides])
    whole = np.hstack([np.floor(boxes[:, :2]), np.ceil(boxes[:, 2:])])
    return np.where(rng.random((count, 1)) < 0.3, whole, boxes)


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_of_placed_masks_are_compared_as_one_by_one(seed):
    rng = np.random.default_rng(seed)
    count = linking._PAIRS * 2 + 5  # more than are looked at together
    first, second = random_shapes(rng, count), random_shapes(rng, count)
    one, other = random_boxes(rng, count), random_boxes(rng, count)
    half = count // 2
    other[:half] = one[:half] + np.tile(rng.normal(0, 4, (half, 2)), 2)
    other[:20], second[:10] = one[:20], first[:10]
    plain = [placed_iou(*pair) for pair in zip(first, one, second, other, strict=True)]
    np.testing.assert_array_equal(placed_ious(first, one, second, other), plain)
    assert 0.1 < np.mean(np.array(plain) > 0) < 0.9
    places = placed_px(extents_of(first), one), placed_px(extents_of(second), other)
    apart = box_iou_rows(*places) <= 0
    assert not np.array(plain)[apart].any(), "what is not compared has nothing in common"
    assert (apart & (box_iou_rows(one, other) > 0)).any()
    assert len(placed_ious(first[:0], one[:0], second[:0], other[:0])) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_masks_are_sampled_as_if_they_were_painted(seed):
    rng = np.random.default_rng(seed)
    count, boxes = 40, random_boxes(rng, 40)
    boxes[:3] = 0
    pixels = rng.random((count, *SIZE_HW)) < rng.random((count, 1, 1)) ** 3
    pixels[rng.random(count) < 0.2] = rng.random() < 0.5
    rle = tuple(coco_mask.encode(np.asfortranarray(one, np.uint8))["counts"] for one in pixels)
    ones = np.ones(count, np.float32)
    areas = pixels.sum(axis=(1, 2)).astype(np.int64)
    masks = Masks(rle, SIZE_HW, ones, ones, ones, areas, ("",) * count)
    step = (np.arange(GRID) + 0.5) / GRID
    plain = np.zeros((count, GRID, GRID), bool)
    for grid, painted, box in zip(plain, pixels, boxes, strict=True):
        x, y = (np.floor(box[i] + step * (box[i + 2] - box[i])).astype(int) for i in (0, 1))
        for row, column in np.ndindex(GRID, GRID):
            if 0 <= y[row] < SIZE_HW[0] and 0 <= x[column] < SIZE_HW[1]:
                grid[row, column] = painted[y[row], x[column]]
    bits = np.unpackbits(shapes_of(masks, boxes).view(np.uint8), axis=1)
    np.testing.assert_array_equal(bits.reshape(plain.shape), plain)
