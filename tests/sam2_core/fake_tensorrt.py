"""A stand-in for what of TensorRT-RTX needs a GPU: loading and running engines.

Engines are built by the real library. Here ONNX Runtime runs the graph that an engine was built of,
which the file beside it names. A shape outside the profile or a context without memory shows here
as on a GPU.
"""

from __future__ import annotations

import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.sam2_core.fake_cuda_device import FakeDevice

real = pytest.importorskip("tensorrt_rtx_bindings", exc_type=ImportError)
DTYPES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32, "tensor(int64)": np.int64,
}  # fmt: skip
MODULES = {
    name: f"sam2_core.backends.tensorrt_{name}" for name in ("engines", "runtime", "backend")
}


class RuntimeCache:
    """Kernels of shapes that were specialised; here a byte for each."""

    kernels = b""

    def deserialize(self, blob: bytes) -> bool:
        self.kernels = blob
        return True

    def serialize(self) -> bytes:
        return self.kernels


class RuntimeConfig:
    dynamic_shapes_kernel_specialization_strategy: Any = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        assert strategy == real.ExecutionContextAllocationStrategy.USER_MANAGED

    def create_runtime_cache(self) -> RuntimeCache:
        return RuntimeCache()

    def set_runtime_cache(self, cache: RuntimeCache) -> bool:
        self.cache = cache
        return True


class Engine:
    device_memory_size_v2 = 4096

    def __init__(self, facts: dict[str, Any]) -> None:
        self.profile = facts["profile"]
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(facts["graph"], options)
        self.inputs = {one.name: DTYPES[one.type] for one in self.session.get_inputs()}
        self.outputs = {one.name: DTYPES[one.type] for one in self.session.get_outputs()}
        self.names = [*self.inputs, *self.outputs]
        self.num_io_tensors = len(self.names)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> Any:
        return real.TensorIOMode.INPUT if name in self.inputs else real.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return {**self.inputs, **self.outputs}[name]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        assert profile_index == 0
        return self.profile[name]

    def create_runtime_config(self) -> RuntimeConfig:
        return RuntimeConfig()

    def create_execution_context(self, runtime_config: RuntimeConfig) -> Context:
        return Context(self, runtime_config)


class Context:
    capturable = True

    def __init__(self, engine: Engine, config: RuntimeConfig) -> None:
        self.engine, self.config = engine, config
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.has_memory = False

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self.engine.device_memory_size_v2
        FakeDevice.current._inside(memory, size)
        self.has_memory = True

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> None:
        self.profile = self.engine.get_tensor_profile_shape

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.profile(name, 0)
        if not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            return False
        self.shapes[name] = tuple(shape)
        return True

    def infer_shapes(self) -> list[str]:
        missing = sorted(set(self.engine.inputs) - set(self.shapes))
        if not missing:
            zeros = {name: np.zeros(self.shapes[name], t) for name, t in self.engine.inputs.items()}
            outputs = self.engine.session.run(list(self.engine.outputs), zeros)
            self.output_shapes = dict(zip(self.engine.outputs, map(np.shape, outputs), strict=True))
        return missing

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.output_shapes[name]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return self.capturable

    def execute_async_v3(self, stream_handle: int) -> bool:
        if not self.has_memory or set(self.addresses) != set(self.engine.names):
            return False
        assert self.config.dynamic_shapes_kernel_specialization_strategy is not None
        self.config.cache.kernels += b"k"
        shapes, addresses = dict(self.shapes), dict(self.addresses)
        FakeDevice.current.enqueue(stream_handle, lambda: self._compute(shapes, addresses))
        return True

    def _compute(self, shapes: Any, addresses: dict[str, int]) -> None:
        device = FakeDevice.current
        feeds = {
            name: device.view(addresses[name], dtype, shapes[name]).copy()
            for name, dtype in self.engine.inputs.items()
        }
        outputs = self.engine.session.run(list(self.engine.outputs), feeds)
        for name, array in zip(self.engine.outputs, outputs, strict=True):
            device.view(addresses[name], array.dtype, array.shape)[...] = array


class Runtime:
    folder: Path

    def __init__(self, logger: Any) -> None:
        pass

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        digest = hashlib.sha256(serialized_engine).hexdigest()
        for described in self.folder.rglob("*.json"):
            facts = json.loads(described.read_text())
            if facts.get("engine_sha256") == digest:
                return Engine(facts)
        return None


def install(monkeypatch: pytest.MonkeyPatch, engines: Path) -> types.ModuleType:
    """Put the stand-in in the place of TensorRT; it loads engines that lie in a folder."""
    fake = types.ModuleType("tensorrt")
    vars(fake).update(vars(real))
    fake.__spec__ = types.SimpleNamespace(name="tensorrt")  # find_spec asks for it
    runtime = type("Runtime", (Runtime,), {"folder": engines})
    vars(fake).update(Runtime=runtime, nptype=lambda dtype: dtype)
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    for full in MODULES.values():
        monkeypatch.delitem(sys.modules, full, raising=False)
    return fake
