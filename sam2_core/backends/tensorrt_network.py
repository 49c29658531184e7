"""A network of letterboxed frames, such as a detector, on TensorRT: beside a mask model there.

The same graph in halves, batches, kernels and buffers as on ONNX Runtime (`CudaNetwork`); only what
runs the graph is an engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from sam2_core.backends.gpu import Gpu
from sam2_core.backends.onnx_in_halves import for_gpu
from sam2_core.backends.onnxruntime_graph import Declared, Shape, Tensor
from sam2_core.backends.onnxruntime_network import BUCKETS, CudaNetwork
from sam2_core.backends.tensorrt_build import BuildOptions, build_engine, write_atomically
from sam2_core.backends.tensorrt_engine import LoadedEngine, load_engines
from sam2_core.backends.tensorrt_plan import NETWORK, Buckets


class BoundEngine:
    """An engine's buffers at one shape."""

    def __init__(self, tensors: Mapping[str, Tensor], run: Callable[[], object]) -> None:
        self.tensors, self.run = tensors, run


class EngineGraph:
    """An engine of one input and one output, as `CudaNetwork` runs graphs; on the device's thread.

    Args:
        engine: loaded on the device's stream.

    """

    def __init__(self, engine: LoadedEngine) -> None:
        self._engine = engine
        ((self._input, largest),) = engine.largest.items()
        rows = {name: largest[1:] if name == self._input else engine.row_shape(name)
                for name in engine.tensors}  # fmt: skip
        inputs_first = sorted(rows, key=lambda name: name != self._input)
        self.declared = {
            name: Declared(engine.tensors[name].dtype, rows[name]) for name in inputs_first
        }

    def bound(self, counts: Mapping[str, int]) -> BoundEngine:
        """Return the buffers, which are the same for every number of images, and what runs them."""
        shape: Shape = (counts[self._input], *self.declared[self._input].row)
        tensors = {
            name: Tensor(one.dtype, one.row, self._engine.tensors[name].address)
            for name, one in self.declared.items()
        }
        return BoundEngine(tensors, lambda: self._engine.run({self._input: shape}))

    def release(self) -> None:
        """Keep the buffers: they are fixed, and the next frames need them; `Gpu` gives the rest."""


def tensorrt_network(
    path: Path, data: bytes, gpu: Gpu, engines: Path, *, halves: bool = True
) -> CudaNetwork:
    """Load a network on TensorRT, building its engine first where there is none.

    Args:
        path: the ONNX file, for messages.
        data: its bytes.
        gpu: the device.
        engines: the cache of engines.
        halves: compute in float16 behind the first convolution.

    Raises:
        AutolabelError: TensorRT cannot build or load it.

    """
    model = for_gpu(data, halves=halves)
    graph = engines / "networks" / f"{hashlib.sha256(model).hexdigest()[:16]}.onnx"
    if not graph.is_file():
        write_atomically(graph, model)
    options = BuildOptions(Buckets(images=BUCKETS))

    def load() -> EngineGraph:
        built = build_engine(
            graph, NETWORK, gpu=gpu.device.name, engines_dir=engines, options=options
        )
        return EngineGraph(load_engines({NETWORK: built.path}, gpu)[NETWORK])

    return CudaNetwork(path, data, gpu, {}, graph=gpu.run(load))
