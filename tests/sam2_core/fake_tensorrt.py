"""A stand-in for TensorRT where there is no GPU: same calls, ONNX Runtime underneath."""

from __future__ import annotations

import types

from tests.sam2_core.fake_tensorrt_build import Builder, OnnxParser, OnnxParserRefitter, Refitter
from tests.sam2_core.fake_tensorrt_engine import (
    ExecutionContextAllocationStrategy,
    Logger,
    Runtime,
    TensorIOMode,
    enum,
)


def module(version: str = "11.4.0.106") -> types.ModuleType:
    """What `import tensorrt` finds in these tests."""
    fake = types.ModuleType("tensorrt")
    fake.__spec__ = types.SimpleNamespace(name="tensorrt")  # find_spec asks for it
    members = (
        Logger, Builder, OnnxParser, Runtime, Refitter, OnnxParserRefitter,
    )  # fmt: skip
    for member in members:
        setattr(fake, member.__name__, member)
    fake.__version__ = version
    fake.nptype = lambda dtype: dtype
    fake.TensorIOMode = TensorIOMode
    fake.ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy
    fake.MemoryPoolType = enum("WORKSPACE")
    fake.BuilderFlag = enum("REFIT", "TF32")
    fake.NetworkDefinitionCreationFlag = enum("EXPLICIT_BATCH", "STRONGLY_TYPED")
    return fake
