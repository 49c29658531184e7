"""Buffers, buckets and bindings of the CUDA backend, on host memory and ONNX Runtime's CPU."""

from pathlib import Path

import numpy as np
import pytest

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend
from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from sam2_core.preprocess import PreparedFrame
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes, DeviceMemoryError, Prompts
from tests.sam2_core.host_device import host_gpu
from tests.sam2_core.small_graphs import sample_prompts, with_close_ups

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ModelFolder.open(DATA / "micro", tmp_path_factory.mktemp("cache"))


CPU = ["CPUExecutionProvider"]


@pytest.fixture
def backend(folder):
    return OnnxRuntimeCudaBackend(folder, host_gpu(), CPU)


@pytest.fixture(scope="module")
def reference(folder):
    return OnnxRuntimeBackend(folder, threads=1)


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
    masks = np.random.default_rng(0).normal(0, 2, (count, 32, 32)).astype(np.float32)
    mask_logits = masks if count == 7 else None
    points, labels = prompts.points_model, prompts.labels
    if count == 20:  # clicks
        points, labels = points[:, [0, 1, 0, 1, 2]], np.int32([[1, 0, 1, 1, -1]] * count)
    prompts = Prompts(points, labels, index, mask_logits)
    features = backend.encode(frames)
    backend.encode(images(batch, seed=9))  # other frames overwrite nothing
    expected = reference.decode(reference.encode(frames), prompts)
    assert_same(backend.decode(features, prompts), expected)


def test_a_device_cuts_close_ups_as_the_cpu_does(folder, tmp_path):
    model = ModelFolder.open(with_close_ups(folder.path, tmp_path / "micro", 128), tmp_path)
    gpu = host_gpu()
    on_device = Segmenter(OnnxRuntimeCudaBackend(model.for_close_ups(), gpu, CPU))
    on_cpu = Segmenter(OnnxRuntimeBackend(model.for_close_ups(), threads=1))
    image = np.random.default_rng(0).integers(0, 256, (200, 310, 3)).astype(np.uint8)
    boxes = Boxes([[10, 20, 60, 90], [200, 5, 309, 190], [100, 100, 112, 108]], [1] * 3, ("a",) * 3)
    ours, theirs = (one.segment([image], [boxes])[0] for one in (on_device, on_cpu))
    assert ours.rle == theirs.rle
    np.testing.assert_allclose(ours.predicted_iou, theirs.predicted_iou, atol=1e-4)
    # One upload of the frame serves its close-ups.
    assert gpu.device.copied_bytes.count(image.nbytes) == 1


def test_without_memory_buffers_are_released_and_fewer_boxes_fit(folder):
    generous = OnnxRuntimeCudaBackend(folder, host_gpu(), CPU)
    boxes = sample_prompts(136, 128)
    expected = generous.decode(generous.encode(images(1)), boxes)
    largest = sum(
        tensor.dtype.itemsize * 136 * int(np.prod(tensor.row))
        for name, tensor in generous._graphs["decoder_single"].declared.items()
        if name == "logits"
    )
    gpu = host_gpu(memory_bytes=(1 << 40) - generous.gpu.device.left - largest // 2)
    tight = OnnxRuntimeCudaBackend(folder, gpu, CPU)
    features = tight.encode(images(1))
    with pytest.raises(DeviceMemoryError):
        tight.decode(features, boxes)
    segmenter = Segmenter(tight)
    frame = PreparedFrame(images(1), (128, 128), boxes, np.arange(136), ("",) * 136)
    (found,) = segmenter.run([frame])
    assert segmenter.decoder_chunk < 136
    assert_same(found, expected)


def test_a_graph_that_cannot_be_opened_for_lack_of_memory_is_opened_once_there_is_some(
    folder, monkeypatch
):
    import onnxruntime

    backend = OnnxRuntimeCudaBackend(folder, host_gpu(), CPU)
    frames = images(1)
    # What ONNX Runtime 1.31 said on a GPU with a few MiB left.
    said = "Exception during initialization: CUBLAS failure 3: the resource allocation failed"

    def full(*_, **__):
        raise RuntimeError(said)

    for graph in backend._graphs.values():  # as after a lack of memory elsewhere
        graph.release()
    with monkeypatch.context() as patched:
        patched.setattr(onnxruntime, "InferenceSession", full)
        with pytest.raises(DeviceMemoryError, match=r"load encoder\.onnx"):
            backend.encode(frames)
    assert backend.encode(frames).batch == 1
