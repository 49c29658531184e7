"""Which buckets of the torch backend are captured, and when; without a GPU nothing is."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from sam2_core.backends import torch_backend, torch_buckets  # noqa: E402
from sam2_core.backends.device_owner import DeviceOwner, device_owner  # noqa: E402
from sam2_core.backends.torch_buckets import IMAGE_BUCKETS, Buckets  # noqa: E402
from sam2_core.backends.torch_compiled import CompiledModules  # noqa: E402
from sam2_core.load import load_backend  # noqa: E402
from sam2_core.preprocess import StagedFrame  # noqa: E402
from sam2_core.tuning import sample_prompts  # noqa: E402
from sam2_core.types import DeviceLostError, DeviceMemoryError, Features  # noqa: E402
from tests.sam2_core.host_device import host_gpu  # noqa: E402

CPU = torch.device("cpu")


class HostGraph:
    """Stands for a captured CUDA graph: runs the function over fixed inputs and outputs."""

    def __init__(self, function, inputs, stream, pool):
        self.function, self.inputs, self.graph = function, inputs, self
        self.outputs = tuple(output.clone() for output in function(*inputs))

    def replay(self):
        for output, now in zip(self.outputs, self.function(*self.inputs), strict=True):
            output.copy_(now)


class HostStream:
    """Stands for a stream, on which work waits for nothing."""

    def wait_stream(self, other):
        pass


class OnHost(CompiledModules):
    """Runs modules as they are; what would be compiled is noted, and an empty file is left."""

    def __init__(self, folder):
        super().__init__(folder, {"preset": "micro"}, CPU)
        self.compiled, self.loaded = [], []

    def function(self, name, module, inputs):
        path = self.artifact(name, module, inputs)
        (self.loaded if path.exists() else self.compiled).append(name)
        path.touch()
        return module


@pytest.fixture
def backend(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_buckets, "Captured", HostGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    found = load_backend("random:micro", "torch", "fp32", cache=tmp_path / "cache")
    found._stream = None
    return found


def process(backend, folder):
    """Give a backend what a new process would have; returns what it compiles."""
    functions = OnHost(folder)
    sizes = (backend.info.image_size, IMAGE_BUCKETS)
    backend._graphs = Buckets(backend._modules, functions, sizes, CPU, None)
    return functions


@torch.no_grad()
def label(backend, images, boxes):
    """Use the buckets as `encode` and `decode_later` do on a GPU."""
    features = SimpleNamespace(data=backend._graphs.encoder(images).outputs, batch=images)
    backend._graphs.decoder(features, boxes)


@pytest.mark.parametrize("count", [1, 3])
def test_views_go_through_the_buckets_as_squares_do_without(backend, tmp_path, monkeypatch, count):
    rng = np.random.default_rng(count)
    images = [rng.integers(0, 256, (60, 90 + n, 3)).astype(np.uint8) for n in range(count)]
    given = sample_prompts(9, backend.info.image_size)
    prompts = replace(given, image_index=np.arange(9) % count)
    features = backend.encode(images)
    expected = backend.decode(features, prompts)
    process(backend, tmp_path)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    backend._uploads, backend._stream = HostStream(), HostStream()
    backend._download = lambda outputs, _: backend._masks(*(one.numpy() for one in outputs))
    size = backend.info.image_size
    for _ in range(2):
        staged = [backend._pixels.stage(image).whole() for image in images]
        taken = [backend._pixels.given(one, size, cuts=True) for one in staged]
        data = backend._on_device(partial(backend._encode_cuda, taken))
        device = Features(data, count, features.sizes_hw)
        found = backend._on_device(partial(backend._decode_cuda, device, prompts))
        np.testing.assert_allclose(found.logits, expected.logits, atol=2e-3)
        np.testing.assert_allclose(found.predicted_iou, expected.predicted_iou, atol=1e-4)
    assert len(backend._graphs.captured) == 2


def test_what_was_compiled_before_is_loaded_ahead_and_nothing_else(backend, tmp_path):
    first = process(backend, tmp_path)
    backend.warm_up()
    assert (first.compiled, first.loaded) == ([], [])  # on an empty cache it costs nothing
    label(backend, 1, 9)
    label(backend, 3, 70)
    used = ["encoder-1-0", "decoder-1-32", "encoder-4-0", "decoder-4-96"]
    assert first.compiled == used
    second = process(backend, tmp_path)
    backend.warm_up()
    assert (second.compiled, second.loaded) == ([], used)
    label(backend, 1, 32)
    label(backend, 4, 96)
    backend.warm_up()
    assert second.loaded == used  # frames find it, and a second time it does nothing
    label(backend, 2, 1)
    assert second.compiled == ["encoder-2-0", "decoder-2-8"]
    assert set(backend._graphs.captured) == {
        ("encoder", 1, 0), ("decoder", 1, 32), ("encoder", 4, 0), ("decoder", 4, 96),
        ("encoder", 2, 0), ("decoder", 2, 8),
    }  # fmt: skip


def test_a_size_that_could_not_be_compiled_ahead_is_compiled_ahead_of_frames(backend, tmp_path):
    functions = process(backend, tmp_path)
    label(backend, 1, 8)
    for path in list(tmp_path.glob("*.pt2")):
        path.rename(path.with_suffix(".refused"))
    again = process(backend, tmp_path)
    backend.warm_up()
    assert again.compiled == functions.compiled == ["encoder-1-0", "decoder-1-8"]


def test_after_a_lack_of_memory_graphs_are_captured_into_memory_of_their_own(
    backend, tmp_path, monkeypatch
):
    """PyTorch refuses the memory of graphs that are gone while what they made is held."""
    pools, used = iter("abc"), []

    class Noted(HostGraph):
        def __init__(self, *given):
            used.append(given[-1])
            super().__init__(*given)

    monkeypatch.setattr(torch_buckets, "Captured", Noted)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    process(backend, tmp_path)
    label(backend, 1, 8)
    backend._graphs.release()
    label(backend, 1, 8)
    assert used == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("CUDA error: operation failed due to a previous error during capture", True),
        ("CUDA error: operation not permitted when stream is capturing", True),
        ("sizes of tensors must match", False),
    ],
)
def test_after_a_capture_that_failed_the_process_asks_nothing_more(
    backend, tmp_path, monkeypatch, text, lost
):
    """PyTorch ends the driver's capture first, and its allocator's only if that works."""

    def fails(*_):
        raise RuntimeError(text)

    process(backend, tmp_path)
    backend._owner = DeviceOwner()
    monkeypatch.setattr(torch_buckets, "Captured", fails)
    with pytest.raises(DeviceLostError if lost else RuntimeError, match=text):
        backend._on_device(lambda: label(backend, 1, 8))
    assert (backend._owner.lost is not None) == lost
    assert not backend._graphs.captured
    assert not device_owner()._capturing


def test_a_lack_of_memory_releases_graphs_and_what_is_kept_for_the_detector(
    backend, tmp_path, monkeypatch
):
    process(backend, tmp_path)
    label(backend, 1, 8)
    gpu = host_gpu(kernels=False)
    gpu.kept.keep("frame", StagedFrame(np.zeros((4, 4, 3), np.uint8)))
    monkeypatch.setattr(torch_backend, "opened_gpu", lambda: gpu)

    def full():
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(DeviceMemoryError, match="no memory left"):
        backend._on_device(full)
    assert not backend._graphs.captured
    assert gpu.kept.take("frame") is None
