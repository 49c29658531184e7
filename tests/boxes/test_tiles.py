"""Frames in tiles: everything is seen, nothing twice, and small objects are found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.params import LabelParams
from sam2_core.types import Boxes
from tasks.boxes.detect import Tile, detect, merged, tiles_of
from tasks.boxes.detectors import load_detector
from tasks.boxes.import_files import import_boxes
from tasks.frames.discover import discover


@pytest.mark.parametrize("size_hw", [(1860, 2880), (48, 64), (7, 3001)])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_tiles_cover_a_frame_and_overlap(size_hw, count):
    whole, *tiles = tiles_of(size_hw, count)
    assert whole == Tile(0, 0, size_hw[1], size_hw[0])
    assert len(tiles) == (0 if count == 1 else count**2)
    seen = np.zeros(size_hw, int)
    for tile in tiles:
        seen[tile.top : tile.bottom, tile.left : tile.right] += 1
        assert tile.left < tile.right <= size_hw[1]
        assert tile.top < tile.bottom <= size_hw[0]
    if tiles:
        assert seen.min() >= 1
        assert seen.max() >= 2 or min(size_hw) < 10


def boxes(*rows):
    return Boxes(
        [row[:4] for row in rows],
        [row[4] for row in rows],
        tuple(row[5] for row in rows),
        None,
        "d",
    )


def test_an_object_in_two_tiles_is_one_box_and_a_cut_part_gives_way():
    left, right = Tile(0, 0, 60, 100), Tile(40, 0, 100, 100)
    found = [
        (Tile(0, 0, 100, 100), boxes((5, 5, 95, 95, 0.4, "bus"))),
        # Cut by the tile's right border: a part of the car that the other tile has whole.
        (left, boxes((44, 50, 60, 70, 0.9, "car"), (2, 2, 8, 8, 0.5, "sign"))),
        (right, boxes((5, 50, 35, 70, 0.6, "car"), (10, 10, 14, 14, 0.3, "car"))),
    ]
    one = merged(found)
    rows = list(zip(one.labels, one.scores.tolist(), one.xyxy_px.tolist(), strict=True))
    assert [(label, box) for label, _, box in rows] == [
        ("car", [45, 50, 75, 70]), ("sign", [2, 2, 8, 8]), ("bus", [5, 5, 95, 95]),
        ("car", [50, 10, 54, 14]),
    ]  # fmt: skip
    assert one.source == "d"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31), height=st.integers(100, 2000), width=st.integers(100, 3000),
    count=st.integers(2, 5),
)  # fmt: skip
def test_objects_seen_in_any_tiles_come_out_once_and_whole(seed, height, width, count):
    random = np.random.default_rng(seed)
    whole, *tiles = tiles_of((height, width), count)
    # One object in every cell of a grid, nowhere larger than what two tiles share.
    shared = np.array([width, height]) / (count - (count - 1) * 0.2) * 0.2
    cells = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1).reshape(-1, 2)
    cell = np.array([width, height]) / 4
    sides = random.uniform(0.3, 1, (16, 2)) * np.minimum(shared, cell * 0.9)
    low = cells * cell + random.uniform(0, 1, (16, 2)) * (cell - sides)
    truth = np.concatenate([low, low + sides], 1).round()
    found = [(whole, boxes(*((*row, 0.3, "car") for row in truth.tolist())))]
    for tile in tiles:
        frame = np.array([tile.left, tile.top, tile.right, tile.bottom])
        inside = np.clip(truth, np.tile(frame[:2], 2), np.tile(frame[2:], 2)) - np.tile(
            frame[:2], 2
        )
        seen = (inside[:, 2:] - inside[:, :2] > 2).all(1)
        rows = [(*row, random.uniform(0.4, 0.9), "car") for row in inside[seen].tolist()]
        found += [(tile, boxes(*rows))] if rows else []
    one = merged(found)
    assert sorted(one.xyxy_px.tolist()) == sorted(truth.tolist())


def test_tiles_are_a_part_of_the_key_and_only_for_detectors():
    plain = LabelParams(sources=("/x",), out="/y")
    assert "tiles" not in plain.deciding()
    assert plain.model_copy(update={"tiles": 3}).deciding()["tiles"] == 3
    with pytest.raises(ValueError, match="tiles are for a detector"):
        LabelParams(sources=("/x",), out="/y", boxes="/z", tiles=2)


def recall(found, truth):
    """Share of boxes that one of the found ones overlaps by half, whatever its class."""
    low = np.maximum(truth[:, None, :2], found[None, :, :2])
    high = np.minimum(truth[:, None, 2:], found[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(2)
    area = [(one[:, 2:] - one[:, :2]).prod(1) for one in (truth, found)]
    iou = shared / (area[0][:, None] + area[1][None] - shared)
    return (iou.max(1, initial=0) >= 0.5).mean()


def test_small_objects_of_a_large_frame_are_found_in_tiles(shared_data):
    (one,) = discover([str(shared_data / "tokyo_street")])
    truth = import_boxes(str(shared_data / "tokyo_street" / "bboxes")).of(one.frames[0]).xyxy_px
    nano = load_detector(str(shared_data / "yolox_nano" / "yolox_nano.onnx"))
    found = [
        recall(detect(one.frames, nano, (), 0.3, tiles=tiles)[0].xyxy_px, truth) for tiles in (1, 3)
    ]
    assert found[1] > 1.5 * found[0] > 0
