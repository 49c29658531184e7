"""Runs an exported model with ONNX Runtime's CUDA provider, captured by it as CUDA graphs.

Buffers are allocated for a shape when it is first run, so that few boxes need little memory, and
all are released when the device runs out of it: ONNX Runtime's own memory with them, which only a
closed session gives back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backend_choice import preload_cuda
from sam2_core.backends.cuda_backend import CudaBackend
from sam2_core.backends.gpu import Declared, Gpu, Graph, Shape, Tensor, process_gpu, sized
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import is_out_of_memory, open_session
from sam2_core.machine import how_to_install
from sam2_core.types import BOX_POINTS, FEATURES, AutolabelError, DeviceMemoryError

logger = logging.getLogger(__name__)


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
        """Queue one run; the first one captures, while nobody waits for the device."""
        if self._ran:
            self._run()
            return
        with self._gpu.owner.capturing():
            self._run()
        self._ran = True

    def _run(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:
            # Memory that is lacking inside a capture shows itself as the capture's end in error.
            if is_out_of_memory(error) or (not self._ran and "during capture" in str(error)):
                raise DeviceMemoryError(f"the GPU has no memory left: {error}") from error
            raise

    def release(self) -> None:
        """Free the buffers; nothing may be queued on them."""
        for tensor in self.tensors.values():
            self._gpu.device.release(tensor.address)
        self.tensors = {}


class FixedGraph:
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
        self.declared: dict[str, Declared] = {}
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

    def bound(self, counts: Mapping[str, int], points: int = BOX_POINTS) -> BoundGraph:
        """Return the graph for first sizes of all inputs and outputs, and points of each prompt.

        Raises:
            DeviceMemoryError: there is no memory for its buffers.

        """
        session = self._opened()
        shapes = sized(self.declared, counts, points)
        key = tuple(sorted(shapes.items()))
        if key not in self._bound:
            self._bound[key] = BoundGraph(session, self._gpu, shapes, len(self._bound) + 1)
        return self._bound[key]

    def release(self) -> None:
        """Give all memory back, ONNX Runtime's too; the next run opens the file again."""
        for bound in self._bound.values():
            bound.release()
        self._bound.clear()
        self._session = None


IMAGE_BUCKETS = (1, 2, 4)
CLOSE_UP_BUCKETS = (8, 16, 32, 64)
BOX_BUCKETS = (1, 8, 32, 64, 136)


class OnnxRuntimeCudaBackend(CudaBackend):
    """A model folder on ONNX Runtime's CUDA provider.

    Args:
        folder: an exported model.
        gpu: the process's when None.
        providers: ONNX Runtime's providers; CUDA on a stream of the device when None.

    """

    def __init__(
        self, folder: ModelFolder, gpu: Gpu | None = None, providers: Sequence[Any] | None = None
    ) -> None:
        if gpu is None:
            preload_cuda()
            gpu = process_gpu()
        self.folder, self.gpu, self._providers = folder.pinned(), gpu, providers
        graphs = gpu.run(self._opened)
        # Every close-up has one box: as many boxes as images.
        whole, crops = (IMAGE_BUCKETS, BOX_BUCKETS), (CLOSE_UP_BUCKETS, CLOSE_UP_BUCKETS)
        buckets = crops if folder.close_ups else whole
        made_by = ("onnxruntime-cuda", "CUDAExecutionProvider")
        super().__init__(self.folder, gpu, graphs, buckets, made_by)

    def _open(self, name: str, *, captured: bool = True) -> Any:
        """Open a graph file, the one that the stamp names; uncaptured where it cannot be."""
        path = self.folder.graph(name)
        providers = self._providers or cuda_provider(self.gpu.stream, captured=captured)
        try:
            session = open_session(path, None, providers)
        except AutolabelError as error:
            if not captured or "graph capture" not in str(error):
                raise
            logger.warning("%s runs without a CUDA graph: %s", path, error)
            return self._open(name, captured=False)
        if self._providers is None and session.get_providers()[0] != "CUDAExecutionProvider":
            raise AutolabelError(
                "ONNX Runtime could not load its CUDA provider: install the extra gpu "
                f"({how_to_install('gpu')}), or choose --backend onnxruntime-cpu"
            )
        self.folder.unchanged()
        if name == "encoder":
            self.folder.hold_against(session.get_modelmeta().custom_metadata_map)
        return session

    def _opened(self) -> dict[str, Graph]:
        """Open encoder and decoders."""
        folder, gpu, grid = self.folder, self.gpu, self.folder.image_size // 4
        prompts: dict[str, Shape] = {
            "points": (BOX_POINTS, 2), "labels": (BOX_POINTS,), "logits": (1, grid, grid),
            "mask_input": (1, grid, grid),
        }  # fmt: skip
        graphs: dict[str, Graph] = {}
        for name in ("decoder", "decoder_single", "decoder_mask"):
            if folder.has(name):
                graphs[name] = FixedGraph(partial(self._open, name), gpu, prompts)
        # The decoder declares the shapes of features in full.
        rows = {name: graphs["decoder"].declared[name].row for name in FEATURES}
        graphs["encoder"] = FixedGraph(partial(self._open, "encoder"), gpu, rows)
        return graphs
