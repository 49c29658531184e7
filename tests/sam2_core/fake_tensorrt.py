"""A stand-in for TensorRT where there is no GPU: same calls, ONNX Runtime underneath.

An "engine" is the ONNX file with its profiles. A shape outside a profile or a context without
memory shows here as on a GPU.
"""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tests.sam2_core.fake_cuda_device import FakeDevice

DTYPES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32, "tensor(int64)": np.int64,
}  # fmt: skip


class Named:
    """An enum member."""

    def __init__(self, name: str, value: int = 0) -> None:
        self.name, self.value = name, value

    def __int__(self) -> int:
        return self.value


def enum(*names: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{name: Named(name, value) for value, name in enumerate(names)})


TensorIOMode = enum("NONE", "INPUT", "OUTPUT")
ExecutionContextAllocationStrategy = enum("STATIC", "ON_PROFILE_CHANGE", "USER_MANAGED")


class Logger:
    WARNING = Named("WARNING")

    def __init__(self, min_severity: Named) -> None:
        pass


class Tensor:
    def __init__(self, argument: Any) -> None:
        self.name = argument.name
        self.shape = [size if isinstance(size, int) else -1 for size in argument.shape]
        self.dtype = DTYPES[argument.type]


class Engine:
    def __init__(self, plan: bytes) -> None:
        self.model, self.profiles, self.flags = pickle.loads(plan)
        self.num_optimization_profiles = len(self.profiles)
        self.device_memory_size_v2 = 4096
        self.load()

    def load(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(self.model, options)
        self.inputs = {tensor.name: Tensor(tensor) for tensor in self.session.get_inputs()}
        self.outputs = {tensor.name: Tensor(tensor) for tensor in self.session.get_outputs()}
        self.names = [*self.inputs, *self.outputs]
        self.num_io_tensors = len(self.names)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> Named:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return {**self.inputs, **self.outputs}[name].dtype

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        return list(self.profiles[profile_index][name])

    def create_execution_context(self, strategy: Named) -> Context:
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        return Context(self)

    def serialize(self) -> bytes:
        return pickle.dumps((self.model, self.profiles, self.flags))


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.has_memory = False

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self.engine.device_memory_size_v2
        FakeDevice.current._inside(memory, size)
        self.has_memory = True

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.profile = self.engine.profiles[profile_index]
        FakeDevice.current.enqueue(stream_handle, lambda: None)
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.profile[name]
        if not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            return False
        self.shapes[name] = tuple(shape)
        return True

    def infer_shapes(self) -> list[str]:
        missing = sorted(set(self.engine.inputs) - set(self.shapes))
        if not missing:
            feeds = {
                name: np.zeros(self.shapes[name], tensor.dtype)
                for name, tensor in self.engine.inputs.items()
            }
            outputs = self.engine.session.run(list(self.engine.outputs), feeds)
            self.output_shapes = {
                name: array.shape for name, array in zip(self.engine.outputs, outputs, strict=True)
            }
        return missing

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.output_shapes[name]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        if not self.has_memory or set(self.addresses) != set(self.engine.names):
            return False
        shapes, addresses = dict(self.shapes), dict(self.addresses)
        FakeDevice.current.enqueue(stream_handle, lambda: self._compute(shapes, addresses))
        return True

    def _compute(self, shapes: Any, addresses: dict[str, int]) -> None:
        device = FakeDevice.current
        feeds = {
            name: device.view(addresses[name], tensor.dtype, shapes[name]).copy()
            for name, tensor in self.engine.inputs.items()
        }
        outputs = self.engine.session.run(list(self.engine.outputs), feeds)
        for name, array in zip(self.engine.outputs, outputs, strict=True):
            device.view(addresses[name], array.dtype, array.shape)[...] = array


class Runtime:
    def __init__(self, logger: Logger) -> None:
        pass

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        try:
            return Engine(serialized_engine)
        except Exception:
            return None


class Network:
    model = b""

    def get_input(self, index: int) -> Tensor:
        return Tensor(self.session.get_inputs()[index])

    @property
    def num_inputs(self) -> int:
        return len(self.session.get_inputs())


class OnnxParser:
    num_errors = 0

    def __init__(self, network: Network, logger: Logger) -> None:
        self.network = network

    def parse_from_file(self, model: str) -> bool:
        self.network.model = Path(model).read_bytes()
        try:
            self.network.session = ort.InferenceSession(self.network.model)
        except Exception:
            self.num_errors = 1
            return False
        return True

    def get_error(self, index: int) -> types.SimpleNamespace:
        desc = "the fake parser takes ONNX Runtime's files only"
        return types.SimpleNamespace(node_name=lambda: "node_7", desc=lambda: desc)


class Profile(dict[str, Any]):
    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:  # noqa: A002
        self[input] = (min, opt, max)


class Config:
    builder_optimization_level = 3

    def __init__(self) -> None:
        self.profiles: list[Profile] = []
        self.flags = {"TF32"}

    def set_memory_pool_limit(self, pool: Named, pool_size: int) -> None:
        assert pool.name == "WORKSPACE"

    def set_flag(self, flag: Named) -> None:
        self.flags.add(flag.name)

    def clear_flag(self, flag: Named) -> None:
        self.flags.discard(flag.name)

    def add_optimization_profile(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> types.SimpleNamespace:
        blob = serialized_timing_cache + b"measured;"
        return types.SimpleNamespace(serialize=lambda: blob)

    def set_timing_cache(self, cache: types.SimpleNamespace, ignore_mismatch: bool) -> bool:
        return True


class Builder:
    builds = 0

    def __init__(self, logger: Logger) -> None:
        pass

    def create_network(self, flags: int = 0) -> Network:
        return Network()

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        Builder.builds += 1
        for profile in config.profiles:
            assert set(profile) == {i.name for i in network.session.get_inputs()}
        plan = (network.model, [dict(profile) for profile in config.profiles], config.flags)
        return pickle.dumps(plan)


def module(version: str = "11.4.0.106") -> types.ModuleType:
    """What `import tensorrt` finds in these tests."""
    fake = types.ModuleType("tensorrt")
    fake.__spec__ = types.SimpleNamespace(name="tensorrt")  # find_spec asks for it
    vars(fake).update(
        Logger=Logger, Builder=Builder, OnnxParser=OnnxParser, Runtime=Runtime,
        __version__=version, nptype=lambda dtype: dtype,
        TensorIOMode=TensorIOMode, MemoryPoolType=enum("WORKSPACE"),
        ExecutionContextAllocationStrategy=ExecutionContextAllocationStrategy,
        BuilderFlag=enum("TF32"),
        NetworkDefinitionCreationFlag=enum("EXPLICIT_BATCH", "STRONGLY_TYPED"),
    )  # fmt: skip
    return fake
