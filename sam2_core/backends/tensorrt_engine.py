"""A loaded TensorRT engine: fixed buffers, one context per shape, CUDA graphs.

NVIDIA's advice for dynamic shapes under CUDA graphs is followed: each captured graph has its own
execution context, made without device memory, and all contexts share one block of the largest
size that any of them needs. Every address is fixed when the engine is loaded; nothing is
allocated afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorrt as trt

from sam2_core.backends.gpu import Declared, Gpu, Graph, Shape, Tensor, sized
from sam2_core.backends.tensorrt_build import Profile
from sam2_core.types import BOX_POINTS, AutolabelError

# Inputs whose shape is the bucket: a profile that fixes them has few shapes (image counts).
ONE_CONTEXT_EACH = ("image", "points")


@dataclass(frozen=True)
class BoundEngine:
    """An engine at one shape; its buffers are the same for every shape."""

    tensors: Mapping[str, Tensor]
    run: Callable[[], object]


@dataclass
class _Context:
    """A context whose shapes and addresses are set, and its captured graph."""

    context: trt.IExecutionContext
    output_shapes: dict[str, Shape]
    graph: int | None = None


class LoadedEngine(Graph):
    """An engine with its buffers on a GPU's stream; everything on the device's thread."""

    def __init__(self, path: Path, gpu: Gpu) -> None:
        self._device, self._stream, self._owner = gpu.device, gpu.stream, gpu.owner
        self._logger = trt.Logger(trt.Logger.WARNING)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._deserialize(path)
        self._profiles = self._read_profiles()
        # Between profiles the largest need counts: one block serves every context.
        self.scratch_bytes = int(self._engine.device_memory_size_v2)
        self._scratch = 0
        self._bound: dict[tuple[object, ...], _Context] = {}
        self._inputs = self._names(trt.TensorIOMode.INPUT)
        self.tensors: dict[str, Tensor] = {}

    def _deserialize(self, path: Path) -> trt.ICudaEngine:
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise AutolabelError(
                f"TensorRT {trt.__version__} cannot load {path}: it was built for another GPU or "
                "version, or is damaged. Remove it and run `autolabel models build`"
            )
        return engine

    def _read_profiles(self) -> list[Profile]:
        profiles = []
        for index in range(self._engine.num_optimization_profiles):
            shapes = {}
            for name in self._names(trt.TensorIOMode.INPUT):
                low, tuned, high = self._engine.get_tensor_profile_shape(name, index)
                shapes[name] = (tuple(low), tuple(tuned), tuple(high))
            profiles.append(Profile(str(index), shapes))
        return profiles

    def buckets(self, name: str) -> tuple[int, ...]:
        """Return the fixed first sizes of an input, ascending: what it can be padded to."""
        fixed = [profile for profile in self._profiles if profile.fixes((name,))]
        return tuple(sorted({profile.shapes[name][2][0] for profile in fixed}))

    @property
    def declared(self) -> Mapping[str, Declared]:
        """Inputs and outputs by name; rows are those of the first profile, of boxes."""
        return self.tensors

    def attach(self, scratch_address: int) -> None:
        """Give the engine its scratch memory and allocate its inputs and outputs once, largest."""
        self._scratch = scratch_address
        sizes: dict[str, int] = {}
        rows: dict[str, Shape] = {}
        for index, profile in enumerate(self._profiles):
            largest = {name: shapes[2] for name, shapes in profile.shapes.items()}
            outputs = self._set_shapes(self._new_context(index), largest)
            for name, shape in {**largest, **outputs}.items():
                nbytes = math.prod(shape) * self._dtype(name).itemsize
                sizes[name] = max(sizes.get(name, 0), nbytes)
                rows.setdefault(name, shape[1:])
        for name, nbytes in sizes.items():
            address = self._device.allocate(nbytes)
            self.tensors[name] = Tensor(self._dtype(name), rows[name], address)
            if name in self._inputs:
                # A warm-up must not gather at whatever index the memory happens to hold.
                self._device.clear(address, nbytes, self._stream)

    def bound(self, counts: Mapping[str, int], points: int = BOX_POINTS) -> BoundEngine:
        """Return the buffers, and what runs them at these first sizes, and points of a prompt."""
        shapes = sized({name: self.tensors[name] for name in self._inputs}, counts, points)
        return BoundEngine(self.tensors, lambda: self.run(shapes))

    def release(self) -> None:
        """Keep the buffers: they are fixed, and the next frames need them."""

    def free(self) -> None:
        """Free inputs and outputs; the engine runs no more."""
        self._device.synchronize(self._stream)
        self._bound.clear()
        while self.tensors:
            self._device.release(self.tensors.popitem()[1].address)

    def _dtype(self, name: str) -> np.dtype[np.generic]:
        dtype: np.dtype[np.generic] = np.dtype(trt.nptype(self._engine.get_tensor_dtype(name)))
        return dtype

    def _names(self, mode: trt.TensorIOMode) -> list[str]:
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        return [name for name in names if self._engine.get_tensor_mode(name) == mode]

    def _new_context(self, profile_index: int) -> trt.IExecutionContext:
        context = self._engine.create_execution_context(
            strategy=trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if context is None:
            raise AutolabelError("TensorRT could not create an execution context")
        context.set_device_memory(self._scratch, self.scratch_bytes)
        if not context.set_optimization_profile_async(profile_index, self._stream):
            raise AutolabelError(f"TensorRT refused optimisation profile {profile_index}")
        # The switch may copy on the stream; contexts are made once, so waiting costs nothing.
        self._device.synchronize(self._stream)
        return context

    def _set_shapes(
        self, context: trt.IExecutionContext, shapes: Mapping[str, Shape]
    ) -> dict[str, Shape]:
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise AutolabelError(f"TensorRT refused shape {shape} for input {name!r}")
        missing = context.infer_shapes()
        if missing:
            raise AutolabelError(f"TensorRT lacks the shapes of {', '.join(missing)}")
        outputs = self._names(trt.TensorIOMode.OUTPUT)
        return {name: tuple(context.get_tensor_shape(name)) for name in outputs}

    def _bind(self, shapes: Mapping[str, Shape]) -> _Context:
        profile_index = next(
            (i for i, profile in enumerate(self._profiles) if profile.covers(shapes)), None
        )
        if profile_index is None:
            raise AutolabelError(f"no profile of this engine covers {dict(shapes)}")
        # The profile of points and masks has too many shapes for a context each.
        fixed = self._profiles[profile_index].fixes(ONE_CONTEXT_EACH)
        key = (profile_index, *(sorted(shapes.items()) if fixed else ()))
        bound = self._bound.get(key)
        if bound is not None and fixed:
            return bound
        context = self._new_context(profile_index) if bound is None else bound.context
        output_shapes = self._set_shapes(context, shapes)
        for name, tensor in self.tensors.items():
            if not context.set_tensor_address(name, tensor.address):
                raise AutolabelError(f"TensorRT refused the address of {name!r}")
        bound = self._bound[key] = _Context(context, output_shapes)
        if fixed:
            # One run outside the capture: the first one may initialise lazily.
            self._execute(context)
            self._device.synchronize(self._stream)
            with self._owner.capturing():
                bound.graph = self._device.capture(self._stream, lambda: self._execute(context))
        return bound

    def _execute(self, context: trt.IExecutionContext) -> None:
        if not context.execute_async_v3(self._stream):
            raise AutolabelError("TensorRT failed to enqueue; its reason is above")

    def run(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Enqueue one inference over the fixed buffers and return the outputs' shapes."""
        bound = self._bind(shapes)
        if bound.graph is None:
            self._execute(bound.context)
        else:
            self._device.launch(bound.graph, self._stream)
        return bound.output_shapes


def load_engines(paths: Mapping[str, Path], gpu: Gpu) -> dict[str, LoadedEngine]:
    """Load engines that never run at the same time, on the device's thread.

    One block of scratch memory serves them all. Where they cannot be loaded, nothing of them stays
    on the device.
    """
    engines = {kind: LoadedEngine(path, gpu) for kind, path in paths.items()}
    scratch = gpu.device.allocate(max(engine.scratch_bytes for engine in engines.values()))
    try:
        for engine in engines.values():
            engine.attach(scratch)
    except Exception:
        for engine in engines.values():
            engine.free()
        gpu.device.release(scratch)
        raise
    return engines
