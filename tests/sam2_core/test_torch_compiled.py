"""What the torch backend compiles and captures, and when; on a GPU: tests/gpu."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")

from sam2_core.backends import torch_backend, torch_compiled  # noqa: E402
from sam2_core.backends.device_owner import DEVICE_OWNER, DeviceOwner  # noqa: E402
from sam2_core.backends.torch_compiled import IMAGE_BUCKETS, CompiledBuckets  # noqa: E402
from sam2_core.load import load_backend  # noqa: E402
from sam2_core.preprocess import StagedFrame  # noqa: E402
from sam2_core.types import (  # noqa: E402
    DeviceLostError,
    DeviceMemoryError,
    Features,
    MachineError,
)
from tests.sam2_core.host_device import host_gpu  # noqa: E402

ABOUT = {"preset": "micro"}


class HostGraph:
    """Stands for a captured CUDA graph: runs the function over fixed inputs and outputs."""

    def __init__(self, function, inputs, stream, pool):
        self.function, self.inputs, self.graph = function, inputs, self
        self.outputs = tuple(output.clone() for output in self.made())

    def made(self):
        outputs = self.function(*self.inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def replay(self):
        for output, now in zip(self.outputs, self.made(), strict=True):
            output.copy_(now)


@pytest.fixture
def backend(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_compiled, "Captured", HostGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda module, dynamic: module)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = load_backend("random:micro", "torch", "fp32", cache=tmp_path / "cache")
    found._stream = None
    return found


def process(backend, folder, **about):
    """Give a backend what a new process would have; returns what it captures."""
    sizes = (backend.info.image_size, IMAGE_BUCKETS)
    backend._graphs = CompiledBuckets(backend._modules, folder, ABOUT | about, sizes, None)
    return backend._graphs.captured


@torch.no_grad()
def label(backend, images, boxes):
    """Use the buckets as `encode` and `decode_later` do on a GPU."""
    graphs = backend._graphs
    features = Features(graphs.made(graphs.encoder(images)).outputs, images)
    graphs.made(graphs.decoder(features, boxes))


def test_a_lack_of_memory_releases_graphs_and_what_is_kept_and_their_memory_is_not_taken_again(
    backend, tmp_path, monkeypatch
):
    """PyTorch refuses the memory of graphs that are gone while what they made is held."""
    pools, used, gpu = iter("abc"), [], host_gpu()

    class Noted(HostGraph):
        def __init__(self, *given):
            used.append(given[-1])
            super().__init__(*given)

    monkeypatch.setattr(torch_compiled, "Captured", Noted)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch_backend, "opened_gpu", lambda: gpu)
    captured = process(backend, tmp_path)
    label(backend, 1, 8)
    gpu.kept.keep("frame", StagedFrame(np.zeros((4, 4, 3), np.uint8)))
    with pytest.raises(DeviceMemoryError, match="no memory left"):
        backend._on_device(Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    assert not captured
    assert gpu.kept.take("frame") is None
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
    process(backend, tmp_path)
    backend._owner = DeviceOwner()
    monkeypatch.setattr(torch_compiled, "Captured", Mock(side_effect=RuntimeError(text)))
    with pytest.raises(DeviceLostError if lost else RuntimeError, match=text):
        backend._on_device(lambda: label(backend, 1, 8))
    assert (backend._owner.lost is not None) == lost
    assert not backend._graphs.captured
    assert not DEVICE_OWNER._capturing


@pytest.mark.parametrize(
    ("cause", "kind", "told"),
    [
        (torch.OutOfMemoryError("none left"), torch.OutOfMemoryError, "none left"),
        (ValueError("no C compiler"), MachineError, r"while compiling .*gcc.*cache clear torch"),
    ],
)
def test_a_compiler_that_fails_is_told_from_a_lack_of_memory(
    backend, tmp_path, monkeypatch, cause, kind, told
):
    def compiled(*_):
        try:
            raise cause
        except type(cause):
            raise RuntimeError("while compiling")  # noqa: B904 - as PyTorch wraps it

    monkeypatch.setattr(torch, "compile", lambda module, dynamic: compiled)
    process(backend, tmp_path)
    for _ in range(2):  # the second time as well
        with pytest.raises(kind, match=told):
            label(backend, 1, 8)
    assert not list(tmp_path.glob("*.compiled"))


ENCODE = """
import sys, torch
from pathlib import Path
from sam2_core.backends import torch_compiled
from sam2_core.backends.torch_compiled import Modules
from torch._dynamo.utils import counters
from tests.sam2_core.test_torch_compiled import HostGraph

torch_compiled.Captured, torch.cuda.graph_pool_handle = HostGraph, lambda: None
encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.ReLU()).eval()
modules, folder = Modules(*[encoder] * 4), Path(sys.argv[1])
buckets = torch_compiled.CompiledBuckets(modules, folder, {}, (8, (1,)), None)
with torch.no_grad():
    image = torch.rand(1, 3, 8, 8)
    graph = buckets.made(buckets.encoder(1))
    graph.inputs[0].copy_(image)
    graph.replay()
    torch.testing.assert_close(graph.outputs[0], encoder(image))
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.ci
def test_a_later_process_loads_what_was_compiled_for_any_weights(tmp_path):
    folder = tmp_path / "torch"
    told = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", ENCODE, str(folder)], capture_output=True, text=True,
            cwd=Path(__file__).parents[2], check=False,
            env={k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told.append((done.stdout.strip(), "compiling the mask model" in done.stderr))
    assert told == [("0 1", True), ("1 0", False)]
