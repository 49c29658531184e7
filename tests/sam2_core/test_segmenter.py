"""Batching: rows in the caller's order, whatever the chunks, and what happens out of memory."""

import numpy as np
import pytest

from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes, DeviceMemoryError
from tests.sam2_core.fake_backend import FakeDeviceBackend


def boxes_of(xyxy):
    xyxy = np.array(xyxy, np.float32).reshape(-1, 4)
    return Boxes(xyxy, np.ones(len(xyxy)), ("car",) * len(xyxy))


def random_boxes(count, size_hw, seed):
    generator = np.random.default_rng(seed)
    low = generator.uniform(0, 0.6, (count, 2))
    high = low + generator.uniform(0.1, 0.4, (count, 2))
    return boxes_of(np.concatenate([low, high], 1) * np.tile(size_hw[::-1], 2))


def test_out_of_memory_halves_the_chunk_and_goes_on():
    images = [np.zeros((64, 64, 3), np.uint8)] * 3
    boxes = [random_boxes(20, (64, 64), i) for i in range(3)]
    with Segmenter(FakeDeviceBackend()) as segmenter:
        expected = segmenter.segment(images, boxes)
    backend = FakeDeviceBackend(most_prompts=5, most_images=1)
    with Segmenter(backend, decoder_chunk=64, encoder_batch=3) as segmenter:
        results = segmenter.segment(images, boxes)
        assert segmenter.decoder_chunk <= 5
        assert segmenter.encoder_batch == 1
    for masks, reference in zip(results, expected, strict=True):
        assert masks.rle == reference.rle
        assert masks.object_score.tolist() == reference.object_score.tolist()


def test_out_of_memory_with_a_single_prompt_is_an_error():
    backend = FakeDeviceBackend(most_prompts=0)
    with Segmenter(backend) as segmenter, pytest.raises(DeviceMemoryError):
        segmenter.segment([np.zeros((64, 64, 3), np.uint8)], [random_boxes(4, (64, 64), 0)])
