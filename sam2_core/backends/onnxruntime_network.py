"""A convolutional network of images, such as a detector, on a GPU: frames in, likely rows out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.backends.gpu import Gpu, Graph, Shape, Slot
from sam2_core.backends.onnxruntime_backend import open_session
from sam2_core.backends.onnxruntime_cuda import FixedGraph, cuda_provider
from sam2_core.batching import bucket_for
from sam2_core.preprocess import StagedFrame
from sam2_core.types import DeviceMemoryError, FloatArray

BUCKETS = (1, 4, 8)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a detector's output that may be boxes.

    Attributes:
        cells: int64 (N,), their numbers among all, ascending.
        values: float32 (N, columns).

    """

    cells: npt.NDArray[np.int64]
    values: FloatArray

    def __post_init__(self) -> None:
        freeze_arrays(self, cells="int64 (N)", values="float32 (N, columns)")

    @staticmethod
    def sorted(picked: FloatArray) -> Rows:
        """Make of float32 (N, 1 + columns), cells in front, in any order."""
        cells = picked[:, 0].astype(np.int64)
        order = np.argsort(cells)
        return Rows(cells[order], picked[order, 1:])

    @staticmethod
    def likely(rows: FloatArray, least: float) -> Rows:
        """Choose among all rows, float32 (cells, columns), as a device does."""
        cells = np.flatnonzero(rows[:, 5:].max(1) * rows[:, 4] >= np.float32(least))
        return Rows(cells, rows[cells])


def in_batches(data: bytes) -> bytes:
    """Return a network of one image at a time as one of any number.

    Args:
        data: an ONNX file with one input (1 or B, 3, H, W) and one output, both float32. Shapes
            that name the number of images are copied from what is reshaped.

    """
    import onnx

    model = onnx.load_from_string(data)
    graph = model.graph
    _fold_constants(graph)
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "B"
    shapes = set()
    for node in graph.node:
        if node.op_type == "Reshape":
            shapes.add(node.input[1])
            # A zero is to mean "as it was", which this attribute would turn off.
            kept = [one for one in node.attribute if one.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(kept)
    values = [tensor for tensor in graph.initializer if tensor.name in shapes]
    values += [
        node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.output[0] in shapes
    ]
    for tensor in values:
        sizes = np.array(onnx.numpy_helper.to_array(tensor))
        if len(sizes) > 1 and sizes[0] == 1:
            sizes[0] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(sizes, tensor.name))
    _repeat_constants(graph)
    del graph.value_info[:]
    serialised: bytes = model.SerializeToString()
    return serialised


def _fold_constants(graph: Any) -> None:
    """Cast and transpose weights now: files may hold them in another form than they are used in."""
    import onnx

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type not in {"Cast", "Transpose"} or node.input[0] not in constants:
            continue
        values = np.asarray(onnx.numpy_helper.to_array(constants[node.input[0]]))
        given = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Cast":
            values = values.astype(onnx.helper.tensor_dtype_to_np_dtype(given["to"].i))
        else:
            order = list(given["perm"].ints) if "perm" in given else None
            values = np.ascontiguousarray(values.transpose(order))
        folded = onnx.numpy_helper.from_array(values, node.output[0])
        graph.initializer.append(folded)
        constants[node.output[0]] = folded
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _repeat_constants(graph: Any) -> None:
    """Repeat what is joined to every image's rows: zeros made of those rows are added to it."""
    import onnx

    ones = {t.name for t in graph.initializer if len(t.dims) > 1 and t.dims[0] == 1}
    make = onnx.helper.make_node
    for node in list(graph.node):
        constant = [name for name in node.input if name in ones]
        if node.op_type != "Concat" or not constant or len(constant) == len(node.input):
            continue
        rows = next(name for name in node.input if name not in ones)
        zero, first = f"{rows}_zero", f"{rows}_one_column"
        for name, sizes in ((f"{zero}_from", [0]), (f"{zero}_to", [1]), (f"{zero}_axis", [-1])):
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(sizes), name))
        limit = onnx.numpy_helper.from_array(np.float32(0), f"{zero}_limit")
        graph.initializer.append(limit)
        made = [
            make("Slice", [rows, f"{zero}_from", f"{zero}_to", f"{zero}_axis"], [first]),
            make("Clip", [first, f"{zero}_limit", f"{zero}_limit"], [zero]),
            *(make("Add", [name, zero], [f"{name}_each"]) for name in constant),
        ]
        given = [f"{name}_each" if name in constant else name for name in node.input]
        at = next(i for i, one in enumerate(graph.node) if one.output[0] == node.output[0])
        graph.node[at].input[:] = given
        for offset, one in enumerate(made):
            graph.node.insert(at + offset, one)


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
        providers = self._providers
        if providers is None:
            providers = cuda_provider(self.gpu.stream, captured=self._captured, tf32=True)
        return open_session(self.path, None, providers, model=in_batches(self._data))

    def start(
        self, frames: Sequence[StagedFrame], scaled_wh: Sequence[tuple[int, int]], least: float
    ) -> Callable[[], list[Rows]]:
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
        parts: list[Callable[[], list[Rows]]] = []
        start = 0
        while start < len(frames):
            count = self._most  # another thread may halve it meanwhile
            some = slice(start, start + count)
            queue = partial(self._queue, frames[some], scaled_wh[some], least)
            try:
                parts.append(self.gpu.run(queue))
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

        def run(bucket: int) -> None:
            self._graph.bound(dict.fromkeys(self._graph.declared, bucket)).run()

        for bucket in BUCKETS:
            self.gpu.run(partial(run, bucket))

    def _queue(
        self, frames: Sequence[StagedFrame], scaled_wh: Sequence[tuple[int, int]], least: float
    ) -> Callable[[], list[Rows]]:
        try:
            bucket = bucket_for(len(frames), BUCKETS)
            bound = self._graph.bound(dict.fromkeys(self._graph.declared, bucket))
            target, output = bound.tensors[self._input], bound.tensors[self._output]
            kept = self.gpu.letterboxes(frames, scaled_wh, target.address, target.row[1:])
            bound.run()
            shape = (len(frames), output.row[0], output.row[1])
            counts, picked = self.gpu.likely(output.address, shape, least, output.row[0])
        except DeviceMemoryError:
            self.gpu.device.synchronize(self.gpu.stream)  # earlier frames may still be in buffers
            self._graph.release()
            self.gpu.release_unused()
            raise
        numbers = self.gpu.download(counts.address, np.int32, (len(frames),))
        wait = self.gpu.queued(kept, counts, picked, numbers)
        columns, cells = shape[2] + 1, shape[1]

        def fetch() -> list[Rows]:
            wait()
            addresses = [picked.address + 4 * n * cells * columns for n in range(len(frames))]
            arrays, arrived = self.gpu.run(
                partial(self._fetch_rows, addresses, numbers.tolist(), columns, picked)
            )
            arrived()
            return [Rows.sorted(array) for array in arrays]

        return fetch

    def _fetch_rows(
        self, addresses: Sequence[int], numbers: Sequence[int], columns: int, picked: Slot
    ) -> tuple[list[FloatArray], Callable[[], None]]:
        """Queue the copies of what was chosen, few kilobytes a frame."""
        arrays = [
            self.gpu.download(address, np.float32, (number, columns))
            for address, number in zip(addresses, numbers, strict=True)
        ]
        return arrays, self.gpu.queued(arrays, picked)
