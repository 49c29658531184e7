"""A box's mask is its own: alone, in any batch, with any neighbours, in any order, every time."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend
from sam2_core.load import load_backend
from sam2_core.postprocess import cancel_pairs, encode_masks, encode_toggles
from sam2_core.preprocess import close_ups, regions_xyxy_px
from sam2_core.prompts import box_prompts
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes
from tests.sam2_core.test_postprocess import random_logits

MICRO = Path(__file__).parents[1] / "data" / "micro"
SIZES = ((90, 160), (120, 70), (200, 200))


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    return OnnxRuntimeBackend(ModelFolder.open(MICRO, tmp_path_factory.mktemp("cache")), threads=2)


def images_of(seed):
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (*size, 3), np.uint8) for size in SIZES]


def boxes_of(random, count, size_hw):
    low = random.uniform(0, 0.6, (count, 2))
    high = low + random.uniform(0.05, 0.4, (count, 2))
    xyxy = np.concatenate([low, high], 1) * np.tile(size_hw[::-1], 2)
    return Boxes(xyxy, np.ones(count), ("car",) * count)


def some_of(boxes, rows):
    return Boxes(boxes.xyxy_px[rows], boxes.scores[rows], tuple(boxes.labels[i] for i in rows))


def same(first, second, size_hw):
    """Whether two masks are one; a logit of exactly zero may fall on either side, nothing else."""
    pair = [{"size": list(size_hw), "counts": one} for one in (first, second)]
    return first == second or coco.iou(pair[:1], pair[1:], [0])[0, 0] > 0.999


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**31), chunk=st.integers(1, 12), encoder_batch=st.integers(1, 3),
    counts=st.tuples(*[st.integers(0, 6)] * 3),
)  # fmt: skip
def test_chunks_batches_neighbours_and_order_change_no_mask(
    backend, seed, chunk, encoder_batch, counts
):
    random, images = np.random.default_rng(seed), images_of(seed)
    boxes = [boxes_of(random, n, size) for n, size in zip(counts, SIZES, strict=True)]
    orders = [random.permutation(n) for n in counts]
    mixed = [some_of(one, order) for one, order in zip(boxes, orders, strict=True)]
    sequence = random.permutation(3)
    with Segmenter(backend, decoder_chunk=1, encoder_batch=1) as alone:
        frames = [alone.prepare(i, b) for i, b in zip(images, boxes, strict=True)]
        logits = alone.run(frames)
        expected = [alone.finish(f, low) for f, low in zip(frames, logits, strict=True)]
    with Segmenter(backend, decoder_chunk=chunk, encoder_batch=encoder_batch) as together:
        frames = [together.prepare(images[i], mixed[i]) for i in sequence]
        found_logits = together.run(frames)
        found = [together.finish(f, low) for f, low in zip(frames, found_logits, strict=True)]
    for place, i in enumerate(sequence):
        for row, before in enumerate(orders[i]):
            difference = found_logits[place].logits[row] - logits[i].logits[before]
            assert np.abs(difference).max() <= 1e-4
            assert same(found[place].rle[row], expected[i].rle[before], SIZES[i])
            assert found[place].predicted_iou[row] == pytest.approx(
                expected[i].predicted_iou[before], abs=1e-5
            )


@pytest.fixture(scope="module")
def compact(tmp_path_factory):
    return load_backend("compact", "onnxruntime-cpu", cache=tmp_path_factory.mktemp("compact"))


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31), chunk=st.integers(1, 8), encoder_batch=st.integers(1, 8))
def test_neighbours_and_batches_change_no_mask_in_close_ups(compact, seed, chunk, encoder_batch):
    random, images = np.random.default_rng(seed), images_of(seed)
    boxes = [boxes_of(random, 2, size) for size in SIZES]
    expected = []
    with Segmenter(compact, decoder_chunk=1, encoder_batch=1) as alone:
        for image, some in zip(images, boxes, strict=True):
            for row in range(2):
                frame = alone.prepare(image, some_of(some, [row]))
                (low,) = alone.run([frame])
                expected.append((low.logits[0], alone.finish(frame, low)))
    with Segmenter(compact, decoder_chunk=chunk, encoder_batch=encoder_batch) as together:
        frames = [
            together.prepare(image, some_of(some, [1, 0]))
            for image, some in zip(images, boxes, strict=True)
        ]
        runs = together.run(frames)
        for i, (frame, low) in enumerate(zip(frames, runs, strict=True)):
            found = together.finish(frame, low)
            for place, row in enumerate((1, 0)):
                logits, mask = expected[2 * i + row]
                # These logits are sixteen times as steep as they were trained.
                assert np.abs(low.logits[place] - logits).max() <= 16e-4
                assert same(found.rle[place], mask.rle[0], SIZES[i])
                assert found.predicted_iou[place] == pytest.approx(mask.predicted_iou[0], abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), height=st.integers(1, 40), width=st.integers(1, 40))
def test_run_lengths_are_those_of_pycocotools_and_come_back(seed, height, width):
    random = np.random.default_rng(seed)
    mask = (random.uniform(size=(height, width)) < random.uniform()).astype(np.uint8)
    flat = np.concatenate([[0], mask.flatten(order="F")])
    toggles = np.flatnonzero(np.diff(flat.astype(int)))
    (text,), (area,) = encode_toggles(toggles, np.array([len(toggles)]), (height, width))
    assert text == coco.encode(np.asfortranarray(mask))["counts"]
    assert area == mask.sum()
    np.testing.assert_array_equal(coco.decode({"size": [height, width], "counts": text}), mask)
    twice = np.sort(np.concatenate([toggles, toggles]))
    assert len(cancel_pairs(twice)) == 0  # there and back is nothing


coordinate = st.floats(-200, 2200, width=32)


@settings(max_examples=100, deadline=None)
@given(
    box=st.tuples(coordinate, coordinate, coordinate, coordinate),
    height=st.integers(1, 1500), width=st.integers(1, 2000),
)  # fmt: skip
def test_boxes_come_back_from_model_space_to_a_hundredth_of_a_pixel(box, height, width):
    xyxy = np.array([box], np.float32)
    found = box_prompts(xyxy, (height, width), 1024)
    clipped = np.clip(xyxy[0], 0, [width, height, width, height])
    valid = (box[2] > box[0] and box[3] > box[1]
             and clipped[2] > clipped[0] and clipped[3] > clipped[1])  # fmt: skip
    assert bool(len(found.rows)) == valid
    if valid:
        back = found.points_model[0, :2] * np.array([width / 1024, height / 1024])
        np.testing.assert_allclose(back.reshape(4), clipped, atol=0.01)
        (left, top, right, bottom), *_ = regions_xyxy_px(clipped[None], (height, width)).tolist()
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert left <= clipped[0]
        assert top <= clipped[1]
        assert clipped[2] <= right
        assert clipped[3] <= bottom
        frame = close_ups((height, width), xyxy, 64)
        scale = np.array([right - left, bottom - top]) / 64
        inside = frame.prompts.points_model[0, :2] * scale + [left, top]
        np.testing.assert_allclose(inside.reshape(4), clipped, atol=0.01)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31), left=st.integers(0, 60), top=st.integers(0, 60),
    right=st.integers(0, 60), below=st.integers(0, 60),
)  # fmt: skip
def test_a_region_gives_the_same_mask_wherever_it_lies(seed, left, top, right, below):
    """More image around a close-up moves its mask and changes no pixel of it."""
    logits, origin = random_logits(seed, 10, 0.2, 32)[None], np.zeros((1, 2), int)
    size = np.random.default_rng(seed).integers(1, 80, 2)
    height, width = (int(one) for one in size)
    alone, area, _ = encode_masks(logits, origin, (32, 32), (height, width),
                                  np.array([[0, 0, width, height]]))  # fmt: skip
    large = (height + top + below, width + left + right)
    region = np.array([[left, top, left + width, top + height]])
    placed, same, _ = encode_masks(logits, origin, (32, 32), large, region)
    whole = coco.decode({"size": list(large), "counts": placed[0]})
    crop = coco.decode({"size": [height, width], "counts": alone[0]})
    np.testing.assert_array_equal(whole[top : top + height, left : left + width], crop)
    assert whole.sum() == area[0] == same[0]
