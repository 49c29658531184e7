"""A box's mask is its own: alone, in any batch, with any neighbours, in any order, every time."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from sam2_core.load import load_backend
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes

MICRO = Path(__file__).parents[1] / "data" / "micro"
SIZES = ((90, 160), (120, 70), (200, 200))


@pytest.fixture(scope="module", params=[MICRO, "compact"], ids=["whole frames", "close-ups"])
def backend(request, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return load_backend(request.param, "onnxruntime-cpu", cache=cache, threads=2)


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
    """Whether two masks are one; a logit near zero may fall on either side, nothing else."""
    one, other = (coco.decode({"size": list(size_hw), "counts": rle}) for rle in (first, second))
    return (one != other).sum() <= max(1, other.sum() / 1000)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**31), chunk=st.integers(1, 12), encoder_batch=st.integers(1, 3),
    counts=st.tuples(*[st.integers(0, 4)] * 3),
)  # fmt: skip
@example(seed=6245881, chunk=2, encoder_batch=2, counts=(2, 3, 0))  # a pixel of 776
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
            # Of close-ups logits are sixteen times as steep as they were trained.
            assert np.abs(difference).max() <= (16e-4 if backend.info.close_ups else 1e-4)
            assert same(found[place].rle[row], expected[i].rle[before], SIZES[i])
            assert found[place].predicted_iou[row] == pytest.approx(
                expected[i].predicted_iou[before], abs=1e-5
            )


coordinate = st.floats(-200, 2200, width=32)
