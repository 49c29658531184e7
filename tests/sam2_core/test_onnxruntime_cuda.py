"""Buffers, buckets and bindings of the CUDA backend, on host memory and ONNX Runtime's CPU."""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend
from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from sam2_core.load import load_backend
from sam2_core.tuning import sample_prompts
from sam2_core.types import AutolabelError, Prompts
from tests.sam2_core.small_graphs import with_close_ups

DATA = Path(__file__).parents[1] / "data"


class FakeHostDevice:
    """Host memory in place of a GPU's: copies happen at once."""

    name = "host memory"

    def __init__(self):
        self.blocks = {}

    def allocate(self, nbytes):
        block = (ctypes.c_uint8 * (nbytes + 64))()
        ctypes.memset(block, 0xEE, nbytes)
        address = (ctypes.addressof(block) + 63) // 64 * 64
        self.blocks[address] = (block, nbytes)
        return address

    allocate_pinned = allocate

    def create_stream(self):
        return 1

    def _inside(self, address, nbytes):
        assert any(a <= address and address + nbytes <= a + n for a, (_, n) in self.blocks.items())

    def copy(self, target, source, nbytes, stream):
        self._inside(target, nbytes)
        self._inside(source, nbytes)
        ctypes.memmove(target, source, nbytes)

    def clear(self, address, nbytes, stream):
        self._inside(address, nbytes)
        ctypes.memset(address, 0, nbytes)

    def synchronize(self, stream):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ModelFolder.open(DATA / "micro", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def backend(folder):
    return OnnxRuntimeCudaBackend(folder, FakeHostDevice(), ["CPUExecutionProvider"], "cpu")


@pytest.fixture(scope="module")
def reference(folder):
    return OnnxRuntimeBackend(folder, threads=1, windows=False)


def images(count, seed=0):
    return list(np.random.default_rng(seed).integers(0, 256, (count, 128, 128, 3)).astype(np.uint8))


def assert_same(ours, expected):
    np.testing.assert_allclose(ours.logits, expected.logits, atol=2e-3)
    for name in ("predicted_iou", "object_score", "stability"):
        np.testing.assert_allclose(getattr(ours, name), getattr(expected, name), atol=2e-3)


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (1, 7), (1, 135), (1, 300), (3, 20), (6, 40)])
def test_any_number_of_images_and_boxes(backend, reference, batch, count):
    frames = images(batch)
    prompts = sample_prompts(count, 128)
    index = np.random.default_rng(1).integers(0, batch, count)
    prompts = Prompts(prompts.points_model, prompts.labels, index)
    ours = backend.decode(backend.encode(frames), prompts)
    assert_same(ours, reference.decode(reference.encode(frames), prompts))


def test_features_stay_valid_when_other_frames_are_encoded(backend, reference):
    prompts = sample_prompts(5, 128)
    kept = [backend.encode([image]) for image in images(4)]
    for features, image in zip(kept, images(4), strict=True):
        expected = reference.decode(reference.encode([image]), prompts)
        assert_same(backend.decode(features, prompts), expected)


def test_buffers_are_allocated_once(backend):
    prompts = sample_prompts(30, 128)
    for _ in range(3):
        backend.decode(backend.encode(images(1)), prompts)
    before = len(backend._device.blocks)
    for count in (30, 20, 31):
        backend.decode(backend.encode(images(1)), sample_prompts(count, 128))
    assert len(backend._device.blocks) == before


def test_points_and_masks_go_through_the_same_door(backend, reference):
    frames = images(2)
    points = np.random.default_rng(0).uniform(0, 128, (3, 4, 2)).astype(np.float32)
    labels = np.int32([[1, 0, 1, -1]] * 3)
    masks = np.random.default_rng(0).normal(0, 2, (3, 32, 32)).astype(np.float32)
    for given in (None, masks):
        prompts = Prompts(points, labels, np.array([0, 1, 1]), given)
        ours = backend.decode(backend.encode(frames), prompts)
        assert_same(ours, reference.decode(reference.encode(frames), prompts))


def test_without_a_gpu_it_says_so(tmp_path):
    with pytest.raises(AutolabelError, match=r"GPU|cuda"):
        load_backend(DATA / "micro", "onnxruntime-cuda", "fp32", cache=tmp_path)


def test_close_ups_go_through_in_large_batches(folder, reference, tmp_path):
    model = ModelFolder.open(with_close_ups(folder.path, tmp_path / "micro", 128), tmp_path)
    backend = OnnxRuntimeCudaBackend(
        model.for_close_ups(), FakeHostDevice(), ["CPUExecutionProvider"], "cpu"
    )
    assert backend.info.close_ups
    for count in (1, 5, 70):
        prompts = replace(sample_prompts(count, 128), image_index=np.arange(count))
        frames = images(count)
        ours = backend.decode(backend.encode(frames), prompts)
        assert_same(ours, reference.decode(reference.encode(frames), prompts))
