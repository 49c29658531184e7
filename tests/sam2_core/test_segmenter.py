"""Batching: rows in the caller's order, whatever the chunks, and what happens out of memory."""

import numpy as np
import pytest
from pycocotools import mask as coco

from sam2_core.clicks import OpenImage
from sam2_core.prompts import PointPrompts
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


def test_invalid_boxes_are_rows_with_a_reason_and_frames_without_prompts_are_not_encoded():
    image = np.zeros((100, 100, 3), np.uint8)
    mixed = boxes_of([[10, 10, 50, 50], [50, 50, 10, 10], [20, 20, 90, 90]])
    backend = FakeDeviceBackend()
    with Segmenter(backend) as segmenter:
        first, second, third = segmenter.segment(
            [image] * 3, [mixed, Boxes.empty(), boxes_of([[5, 5, 5, 9]])]
        )
    assert [bool(reason) for reason in first.reasons] == [False, True, False]
    assert first.area_px[1] == 0
    assert first.area_px[0] > 0
    mask = coco.decode({"size": [100, 100], "counts": first.rle[2]})
    assert mask[25:85, 25:85].all()
    assert len(second) == 0
    assert third.reasons == ("invalid box: zero area",)
    assert sum(backend.batches) == 1


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


def test_points_boxes_with_points_and_masks_go_through_the_same_door():
    image = np.zeros((100, 200, 3), np.uint8)
    points = np.array([[[20, 30], [0, 0]], [[10, 10], [190, 90]], [[300, 5], [0, 0]]], np.float32)
    labels = np.array([[-1, 1], [1, 0], [1, -1]], np.int32)
    points[0, 1] = [40, 50]
    backend = FakeDeviceBackend()
    opened = OpenImage(backend, image)
    masks = opened.segment(PointPrompts(points, labels))
    box = np.array([[10, 10, 60, 60]], np.float32)
    opened.segment(PointPrompts(points[1:2], labels[1:2], box, np.zeros((1, 32, 32), np.float32)))
    assert masks.reasons[2].startswith("invalid point")
    one, two, boxed = backend.calls
    assert one.labels.tolist() == [[1, -1]]  # its own padding point and no more
    np.testing.assert_allclose(one.points_model[0, 0], [40 * 128 / 200, 50 * 128 / 100])
    assert two.labels.tolist() == [[1, 0, -1]]
    assert boxed.labels.tolist() == [[2, 3, 1, 0, -1]]
    assert boxed.mask_logits.shape == (1, 32, 32)
    np.testing.assert_allclose(masks.object_score[:2], [25.6, 6.4], rtol=1e-5)
