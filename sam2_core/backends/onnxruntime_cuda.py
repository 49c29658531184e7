"""Runs an exported model with ONNX Runtime's CUDA provider, captured by it as CUDA graphs.

Buffers are allocated for a shape when it is first run, so that few boxes need little memory, and
all are released when the device runs out of it: ONNX Runtime's own memory with them, which only a
closed session gives back.

`CudaNetwork` runs convolutional networks, such as detectors, beside it: frames in, likely rows out.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import Rows
from sam2_core.backend_choice import preload_cuda
from sam2_core.backends.cuda_backend import CudaBackend, buckets_for, graphs_of
from sam2_core.backends.gpu import (
    Bound,
    Declared,
    Gpu,
    Graph,
    Shape,
    Tensor,
    process_gpu,
    sized,
)
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import is_out_of_memory, open_session
from sam2_core.batching import bucket_for
from sam2_core.machine import how_to_install
from sam2_core.preprocess import StagedFrame
from sam2_core.types import BOX_POINTS, FEATURES, AutolabelError, DeviceMemoryError, FloatArray

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
        super().__init__(self.folder, gpu, graphs, buckets_for(folder), "onnxruntime-cuda")

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
        _, *decoders = graphs_of(folder)
        graphs: dict[str, Graph] = {
            name: FixedGraph(partial(self._open, name), gpu, prompts) for name in decoders
        }
        # The decoder declares the shapes of features in full.
        rows = {name: graphs["decoder"].declared[name].row for name in FEATURES}
        graphs["encoder"] = FixedGraph(partial(self._open, "encoder"), gpu, rows)
        return graphs


BUCKETS = (1, 4, 8)


@dataclass(frozen=True, eq=False)
class LikelyRows(Rows):
    """Rows of a detector's output that may be boxes.

    Attributes:
        cells: int64 (N,), their numbers among all, ascending.
        values: float32 (N, columns).

    """

    forms: ClassVar = {"cells": "int64 (N)", "values": "float32 (N, columns)"}

    cells: npt.NDArray[np.int64]
    values: FloatArray

    @staticmethod
    def sorted(picked: FloatArray) -> LikelyRows:
        """Make of float32 (N, 1 + columns), cells in front, in any order."""
        cells = picked[:, 0].astype(np.int64)
        order = np.argsort(cells)
        return LikelyRows(cells[order], picked[order, 1:])

    @staticmethod
    def likely(rows: FloatArray, least: float) -> LikelyRows:
        """Choose among all rows, float32 (cells, columns), as a device does."""
        cells = np.flatnonzero(rows[:, 5:].max(1) * rows[:, 4] >= np.float32(least))
        return LikelyRows(cells, rows[cells])


class CudaNetwork:
    """A network of letterboxed frames on the process's GPU; any thread may call.

    Args:
        path: the ONNX file, for messages.
        data: its bytes.
        gpu: the device.
        shapes: sizes but the first of its input and its output.
        providers: ONNX Runtime's; CUDA on the device's stream when None.
        captured: as a CUDA graph for each number of images.
        graph: what runs it, where that is not ONNX Runtime.

    """

    def __init__(
        self, path: Path, data: bytes, gpu: Gpu, shapes: dict[str, Shape],
        providers: Sequence[Any] | None = None, *, captured: bool = True,
        graph: Graph | None = None,
    ) -> None:  # fmt: skip
        self.path, self.gpu, self._data = path, gpu, data
        self._providers, self._captured = providers, captured
        self._most = BUCKETS[-1]
        self._graph: Graph = graph or gpu.run(lambda: FixedGraph(self._open, gpu, shapes))
        self._input, self._output = list(self._graph.declared)

    def _open(self) -> Any:
        from sam2_core.backends.onnx_batches import in_batches

        providers = self._providers
        if providers is None:
            providers = cuda_provider(self.gpu.stream, captured=self._captured, tf32=True)
        return open_session(self.path, None, providers, model=in_batches(self._data))

    def start(
        self, frames: Sequence[StagedFrame], scaled_wh: Sequence[tuple[int, int]], least: float
    ) -> Callable[[], list[LikelyRows]]:
        """Queue frames.

        Args:
            frames: any number.
            scaled_wh: the size of each in the network's input.
            least: product of objectness and class score that a row needs to be of interest.

        Returns:
            A function that waits for the rows of each frame.

        Raises:
            DeviceMemoryError: a single frame does not fit.

        """
        parts: list[Callable[[], list[LikelyRows]]] = []
        start = 0
        while start < len(frames):
            count = self._most  # another thread may halve it meanwhile
            some = slice(start, start + count)
            queue = partial(self._queue, frames[some], scaled_wh[some], least)
            try:
                parts.append(self.gpu.run_beside([self._graph], queue))
            except DeviceMemoryError:
                if count == 1:
                    raise
                self._most = min(self._most, count // 2)
                logger.warning("out of memory: %d frames in a call of the detector", count // 2)
                continue
            start += count
        return lambda: [rows for part in parts for rows in part()]

    def warm_up(self) -> None:
        """Capture every number of images, before there are frames."""
        for bucket in BUCKETS:
            counts = dict.fromkeys(self._graph.declared, bucket)
            bound = self.gpu.run(partial(self._graph.bound, counts))
            self.gpu.run(bound.run)

    def _queue(
        self, frames: Sequence[StagedFrame], scaled_wh: Sequence[tuple[int, int]], least: float
    ) -> Callable[[], list[LikelyRows]]:
        bucket = bucket_for(len(frames), BUCKETS)
        bound = self._graph.bound(dict.fromkeys(self._graph.declared, bucket))
        target, output = bound.tensors[self._input], bound.tensors[self._output]
        kept = self.gpu.letterboxes(frames, scaled_wh, target.address, target.row[1:])
        bound.run()
        shape = (len(frames), output.row[0], output.row[1])
        counts, picked = self.gpu.likely(output.address, shape, least, output.row[0])
        numbers = self.gpu.download(counts.address, np.int32, (len(frames),))
        wait = self.gpu.queued(kept, counts, picked, numbers)
        columns, cells = shape[2] + 1, shape[1]

        def copied() -> tuple[list[FloatArray], Callable[[], None]]:
            """Queue the copies of what was chosen, few kilobytes a frame."""
            arrays = [
                self.gpu.download(picked.address + 4 * n * cells * columns, np.float32, size)
                for n, size in enumerate((number, columns) for number in numbers.tolist())
            ]
            return arrays, self.gpu.queued(arrays, picked)

        def fetch() -> list[LikelyRows]:
            wait()
            arrays, arrived = self.gpu.run(copied)
            arrived()
            return [LikelyRows.sorted(array) for array in arrays]

        return fetch
