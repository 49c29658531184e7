"""TensorRT engines loaded and run: every address is fixed when an engine is loaded.

Each bucket has an execution context of its own, made without device memory, and a captured CUDA
graph; all contexts share one block of the largest size that any of them needs. Nothing is allocated
afterwards.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.backends.cuda_graphs import Bound, Graph, Shape, Tensor, sized
from sam2_core.backends.gpu import Gpu
from sam2_core.backends.tensorrt_engines import (
    NAME,
    NAME_AND_VERSION,
    ON_ANY_MACHINE,
    Log,
    check_engine,
    target_of,
)
from sam2_core.cache import write_whole
from sam2_core.types import BOX_POINTS, AutolabelError

try:
    import tensorrt as trt
except ImportError:
    import tensorrt_rtx_bindings as trt

logger = logging.getLogger(__name__)
# A context whose shapes and addresses are set, and its captured graph where there is one.
_Context = tuple[Any, int | None]


class LoadedEngine(Graph):
    """An engine with its buffers on a GPU's stream; everything on the device's thread."""

    def __init__(self, path: Path, gpu: Gpu) -> None:
        self._device, self._stream, self._owner = gpu.device, gpu.stream, gpu.owner
        self._log = Log()
        self._runtime = trt.Runtime(self._log)
        check_engine(path, target_of(self._device))
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise AutolabelError(f"{NAME_AND_VERSION} cannot load {path}: {self._log.reasons()}")
        self._config = self._engine.create_runtime_config()
        self._config.set_execution_context_allocation_strategy(
            trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        self._kernels_path, self._kernels = path.with_suffix(".kernels"), b""
        self.scratch_bytes = int(self._engine.device_memory_size_v2)
        self._scratch = 0
        self._bound: dict[tuple[object, ...], _Context] = {}
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        modes = {name: self._engine.get_tensor_mode(name) for name in names}
        self._inputs = [name for name in names if modes[name] == trt.TensorIOMode.INPUT]
        self._outputs = [name for name in names if modes[name] == trt.TensorIOMode.OUTPUT]
        self.tensors: dict[str, Tensor] = {}
        self.declared = self.tensors

    def attach(self, scratch_address: int) -> None:
        """Give the engine its scratch memory and allocate its inputs and outputs once, largest."""
        self._scratch = scratch_address
        shapes = {
            name: tuple(self._engine.get_tensor_profile_shape(name, 0)[2]) for name in self._inputs
        }
        shapes |= self._set_shapes(self._new_context(), shapes)
        for name, shape in shapes.items():
            dtype: np.dtype[Any] = np.dtype(trt.nptype(self._engine.get_tensor_dtype(name)))
            nbytes = math.prod(shape) * dtype.itemsize
            address = self._device.allocate(nbytes)
            self.tensors[name] = Tensor(dtype, shape[1:], address)
            if name in self._inputs:
                # A warm-up must not gather at whatever index the memory happens to hold.
                self._device.clear(address, nbytes, self._stream)
        if ON_ANY_MACHINE:
            self._remember_kernels()

    def _remember_kernels(self) -> None:
        """Compile kernels for each captured shape once per machine, before it is captured."""
        self._config.dynamic_shapes_kernel_specialization_strategy = (
            trt.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        self._cache = self._config.create_runtime_cache()
        if self._kernels_path.is_file():
            self._kernels = self._kernels_path.read_bytes()
            self._cache.deserialize(self._kernels)  # of another driver: they are compiled again
        self._config.set_runtime_cache(self._cache)

    def _keep_kernels(self) -> None:
        if ON_ANY_MACHINE and (kernels := bytes(self._cache.serialize())) != self._kernels:
            write_whole(self._kernels_path, kernels)
            self._kernels = kernels

    def bound(self, counts: Mapping[str, int], points: int = BOX_POINTS) -> Bound:
        """Return the buffers, and what runs them at these first sizes, and points of a prompt."""
        shapes = sized({name: self.tensors[name] for name in self._inputs}, counts, points)
        return Bound(self.tensors, lambda: self.run(shapes))

    def release(self) -> None:
        """Keep the buffers: they are fixed, and the next frames need them."""

    def _new_context(self) -> trt.IExecutionContext:
        context = self._engine.create_execution_context(self._config)
        if context is None:
            raise AutolabelError(f"{NAME} made no execution context: {self._log.reasons()}")
        context.set_device_memory(self._scratch, self.scratch_bytes)
        # Selected by itself for an engine's first context only; it may copy on the stream.
        context.set_optimization_profile_async(0, self._stream)
        self._device.synchronize(self._stream)
        return context

    def _set_shapes(
        self, context: trt.IExecutionContext, shapes: Mapping[str, Shape]
    ) -> dict[str, Shape]:
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                low, _, high = self._engine.get_tensor_profile_shape(name, 0)
                raise AutolabelError(
                    f"this engine takes {name} of {tuple(low)} to {tuple(high)}, not of {shape}"
                )
        missing = context.infer_shapes()
        if missing:
            raise AutolabelError(f"{NAME} lacks the shapes of {', '.join(missing)}")
        return {name: tuple(context.get_tensor_shape(name)) for name in self._outputs}

    def _bind(self, shapes: Mapping[str, Shape]) -> _Context:
        # Clicked points and masks come in too many shapes for a context each.
        free = "mask_input" in shapes or shapes.get("points", (0, BOX_POINTS))[1] != BOX_POINTS
        key = () if free else tuple(shapes.values())
        bound = self._bound.get(key)
        if bound is not None and not free:
            return bound
        context = self._new_context() if bound is None else bound[0]
        graph = None
        self._set_shapes(context, shapes)
        for name, tensor in self.tensors.items():
            if not context.set_tensor_address(name, tensor.address):
                raise AutolabelError(f"{NAME} refused the address of {name!r}")
        if not free:
            # One run outside the capture: the first one may initialise lazily.
            self._execute(context)
            self._device.synchronize(self._stream)
            if not ON_ANY_MACHINE or context.is_stream_capturable(self._stream):
                with self._owner.capturing():
                    graph = self._device.capture(self._stream, lambda: self._execute(context))
            else:
                logger.warning("%s runs %s without a CUDA graph", NAME, shapes)
            self._keep_kernels()
        self._bound[key] = context, graph
        return context, graph

    def _execute(self, context: trt.IExecutionContext) -> None:
        if not context.execute_async_v3(self._stream):
            raise AutolabelError(f"{NAME} did not run: {self._log.reasons()}")

    def run(self, shapes: Mapping[str, Shape]) -> None:
        """Queue one inference over the fixed buffers."""
        context, graph = self._bind(shapes)
        if graph is None:
            self._execute(context)
        else:
            self._device.launch(graph, self._stream)


def load_engines(paths: Mapping[str, Path], gpu: Gpu) -> dict[str, LoadedEngine]:
    """Load engines that never run at the same time, on the device's thread.

    One block of scratch memory serves them all.
    """
    engines = {kind: LoadedEngine(path, gpu) for kind, path in paths.items()}
    scratch = gpu.device.allocate(max(engine.scratch_bytes for engine in engines.values()))
    for engine in engines.values():
        engine.attach(scratch)
    return engines
