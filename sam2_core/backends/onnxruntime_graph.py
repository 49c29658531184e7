"""An ONNX graph on device memory that is allocated once, captured for each shape it is run in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backends.cuda_device import Device
from sam2_core.backends.onnxruntime_backend import is_out_of_memory
from sam2_core.types import DeviceMemoryError

Shape = tuple[int, ...]
_DTYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}


@dataclass(frozen=True)
class _Tensor:
    """An input or output: its fixed memory and the shape of one row."""

    dtype: np.dtype[Any]
    row: Shape
    address: int


def cuda_provider(stream: int, *, captured: bool = True) -> list[Any]:
    """Return the providers of sessions on a stream of ours, captured as CUDA graphs or not."""
    options = {
        "device_id": "0",
        "user_compute_stream": str(stream),
        "enable_cuda_graph": str(int(captured)),
        "use_tf32": "0",
        "arena_extend_strategy": "kSameAsRequested",
    }
    return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


class FixedGraph:
    """One graph file with its buffers at their largest size; calls must not overlap.

    Args:
        session: of the ONNX file.
        device: allocates the buffers.
        stream: that everything runs on.
        where: ONNX Runtime's name of the memory, "cuda" ("cpu" in tests on host memory).
        rows: largest first size of each input and output.
        row_shapes: sizes but the first where the file leaves them open.

    """

    def __init__(
        self,
        session: Any,
        device: Device,
        stream: int,
        where: str,
        *,
        rows: Mapping[str, int],
        row_shapes: Mapping[str, Shape],
    ) -> None:
        self._session = session
        self._where = where
        self._bound: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self.inputs = [node.name for node in self._session.get_inputs()]
        self.tensors: dict[str, _Tensor] = {}
        for node in [*self._session.get_inputs(), *self._session.get_outputs()]:
            dtype = np.dtype(_DTYPES[node.type])
            row = row_shapes.get(node.name, tuple(node.shape[1:]))
            nbytes = rows[node.name] * math.prod(row) * dtype.itemsize
            self.tensors[node.name] = _Tensor(dtype, row, device.allocate(nbytes))
            device.clear(self.tensors[node.name].address, nbytes, stream)

    def run(self, counts: Mapping[str, int]) -> None:
        """Queue one run; `counts` are the first sizes of all inputs and outputs."""
        import onnxruntime as ort

        key = tuple(sorted(counts.items()))
        if key not in self._bound:
            binding, options = self._session.io_binding(), ort.RunOptions()
            for name, tensor in self.tensors.items():
                bind = binding.bind_input if name in self.inputs else binding.bind_output
                shape = (counts[name], *tensor.row)
                bind(name, self._where, 0, tensor.dtype.type, shape, tensor.address)
            options.add_run_config_entry("gpu_graph_id", str(len(self._bound) + 1))
            # We wait for the stream ourselves.
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
            self._bound[key] = binding, options
        binding, options = self._bound[key]
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception as error:
            if is_out_of_memory(error):
                raise DeviceMemoryError(f"the GPU has no memory left: {error}") from error
            raise
