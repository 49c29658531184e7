"""Graphs on ONNX Runtime's CUDA provider, captured by it as CUDA graphs.

Buffers are allocated for a shape when it is first run, so that few boxes need little memory, and
all are released when the device runs out of it: ONNX Runtime's own memory with them, which only a
closed session gives back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backends.cuda_graphs import Bound, Declared, Graph, Shape, Tensor, sized
from sam2_core.backends.gpu import Gpu
from sam2_core.backends.onnxruntime_backend import is_out_of_memory
from sam2_core.types import BOX_POINTS, DeviceMemoryError

_DTYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}


def cuda_provider(stream: int, *, captured: bool = True, tf32: bool = False) -> list[Any]:
    """Return the providers of sessions on a stream of ours.

    Args:
        stream: of CUDA.
        captured: as CUDA graphs.
        tf32: round factors of float32 products to eleven bits: several times faster, and masks
            change with it.

    """
    options = {
        "device_id": "0",
        "user_compute_stream": str(stream),
        "enable_cuda_graph": str(int(captured)),
        "use_tf32": str(int(tf32)),
        "arena_extend_strategy": "kSameAsRequested",
        # The default times every algorithm of every convolution: seconds before the first frame.
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


class BoundGraph:
    """A graph with buffers of one shape."""

    def __init__(self, session: Any, gpu: Gpu, shapes: Mapping[str, Shape], number: int) -> None:
        import onnxruntime as ort

        self._session, self._gpu = session, gpu
        self._binding, self._options = session.io_binding(), ort.RunOptions()
        inputs = {node.name for node in session.get_inputs()}
        self.tensors: dict[str, Tensor] = {}
        self._ran = False
        try:
            for node in [*session.get_inputs(), *session.get_outputs()]:
                dtype, shape = np.dtype(_DTYPES[node.type]), shapes[node.name]
                nbytes = math.prod(shape) * dtype.itemsize
                address = gpu.device.allocate(nbytes)
                self.tensors[node.name] = Tensor(dtype, shape[1:], address)
                # Padding rows hold what they held: never what another program left there.
                gpu.device.clear(address, nbytes, gpu.stream)
                bind = (
                    self._binding.bind_input if node.name in inputs else self._binding.bind_output
                )
                bind(node.name, gpu.where, 0, dtype.type, shape, address)
        except Exception:
            self.release()
            raise
        self._options.add_run_config_entry("gpu_graph_id", str(number))
        # We wait for the stream ourselves.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def run(self) -> None:
        """Queue one run; the first one captures, while no thread waits for the device."""
        try:
            with contextlib.nullcontext() if self._ran else self._gpu.owner.capturing():
                self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:
            # Memory that is lacking inside a capture shows itself as the capture's end in error.
            if is_out_of_memory(error) or (not self._ran and "during capture" in str(error)):
                raise DeviceMemoryError(f"the GPU has no memory left: {error}") from error
            raise
        self._ran = True

    def release(self) -> None:
        """Free the buffers; nothing may be queued on them."""
        for tensor in self.tensors.values():
            self._gpu.device.release(tensor.address)
        self.tensors = {}


class FixedGraph(Graph):
    """One graph file, its session opened when it is first needed; on the device's thread only.

    Args:
        open_session: opens the ONNX file.
        gpu: whose memory and stream.
        row_shapes: sizes but the first of inputs and outputs where the file leaves them open.

    """

    def __init__(
        self, open_session: Callable[[], Any], gpu: Gpu, row_shapes: Mapping[str, Shape]
    ) -> None:
        self._open, self._gpu, self._row_shapes = open_session, gpu, row_shapes
        self._session: Any = None
        self._bound: dict[tuple[tuple[str, Shape], ...], BoundGraph] = {}
        self._opened()

    def _opened(self) -> Any:
        if self._session is None:
            with self._gpu.owner.capturing():  # loading allocates, as capturing does
                self._session = self._open()
            self.declared = {
                node.name: Declared(
                    np.dtype(_DTYPES[node.type]),
                    self._row_shapes.get(node.name, tuple(node.shape[1:])),
                )
                for node in [*self._session.get_inputs(), *self._session.get_outputs()]
            }
        return self._session

    def bound(self, counts: Mapping[str, int], points: int = BOX_POINTS) -> Bound:
        """Return the graph for first sizes of all inputs and outputs, and points of each prompt.

        Raises:
            DeviceMemoryError: there is no memory for its buffers.

        """
        session = self._opened()
        shapes = sized(self.declared, counts, points)
        key = tuple(sorted(shapes.items()))
        if key not in self._bound:
            self._bound[key] = BoundGraph(session, self._gpu, shapes, len(self._bound) + 1)
        return Bound(self._bound[key].tensors, self._bound[key].run)

    def release(self) -> None:
        """Give all memory back, ONNX Runtime's too; the next run opens the file again."""
        for bound in self._bound.values():
            bound.release()
        self._bound.clear()
        self._session = None
