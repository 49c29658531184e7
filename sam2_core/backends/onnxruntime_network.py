"""A convolutional network of images, such as a detector, on a GPU: in halves and in batches.

Such files compute in float32 and often take one image at a time. Here, when the file is opened, the
first size of everything is freed and what follows the first convolution computes in halves. The
first convolution stays in float32: it sees pixels up to 255, and ONNX Runtime's convolutions of
halves add up in halves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.backends.device_slots import Slot
from sam2_core.backends.gpu import Gpu
from sam2_core.backends.onnx_graph import fold_constants
from sam2_core.backends.onnxruntime_backend import open_session
from sam2_core.backends.onnxruntime_graph import (
    Declared,
    FixedGraph,
    Shape,
    Tensor,
    cuda_provider,
)
from sam2_core.batching import bucket_for
from sam2_core.types import AutolabelError, DeviceMemoryError, FloatArray
from sam2_core.views import StagedFrame

BUCKETS = (1, 4, 8)
logger = logging.getLogger(__name__)


def for_gpu(data: bytes, *, halves: bool = True) -> bytes:
    """Return a network of one image at a time as one of any number, in halves.

    Args:
        data: an ONNX file with one input (1 or B, 3, H, W) and one output, both float32.
        halves: else it stays in float32.

    """
    import onnx

    model = onnx.load_from_string(data)
    fold_constants(model.graph)
    _free_batch(model.graph)
    if halves:
        _in_halves(model.graph)
    del model.graph.value_info[:]
    serialised: bytes = model.SerializeToString()
    return serialised


def _free_batch(graph: Any) -> None:
    """Leave the number of images open; shapes that name it copy it from what is reshaped."""
    import onnx

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


def _in_halves(graph: Any) -> None:
    """Compute everything behind the first convolution in halves; the output is float32 again."""
    import onnx

    stem = _stem(graph)
    made = {name for node in stem for name in node.output}
    kept = {name for node in stem for name in node.input}
    types = onnx.TensorProto
    for tensor in graph.initializer:
        if (
            tensor.data_type == types.FLOAT
            and tensor.name not in kept
            and not _is_scale(graph, tensor)
        ):
            values = np.asarray(onnx.numpy_helper.to_array(tensor))
            halves = values.clip(-65504, 65504).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(halves, tensor.name))
    for node in graph.node:
        if node.output[0] in made:
            continue
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == types.FLOAT:
                attribute.i = types.FLOAT16
            if node.op_type == "Constant" and attribute.t.data_type == types.FLOAT:
                values = np.asarray(onnx.numpy_helper.to_array(attribute.t))
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16)))
    first, output = stem[-1].output[0], graph.output[0].name
    for node in graph.node:
        if node.output[0] not in made:
            node.input[:] = [f"{first}_half" if one == first else one for one in node.input]
        node.output[:] = [f"{output}_half" if one == output else one for one in node.output]
    make = onnx.helper.make_node
    at = list(graph.node).index(stem[-1]) + 1
    graph.node.insert(at, make("Cast", [first], [f"{first}_half"], to=types.FLOAT16))
    graph.node.append(make("Cast", [f"{output}_half"], [output], to=types.FLOAT))


def _stem(graph: Any) -> list[Any]:
    """Return the nodes up to the first convolution, with what prepares its weights."""
    nodes = list(graph.node)
    first = next((i for i, node in enumerate(nodes) if node.op_type == "Conv"), None)
    if first is None:
        raise AutolabelError("a network without a convolution")
    needed, stem = set(nodes[first].input), [nodes[first]]
    for node in reversed(nodes[:first]):
        if needed & set(node.output):
            needed |= set(node.input)
            stem.insert(0, node)
    return stem


def _is_scale(graph: Any, tensor: Any) -> bool:
    """Whether a tensor holds scales of a `Resize`, which are float32 always."""
    return any(node.op_type == "Resize" and tensor.name in node.input[1:] for node in graph.node)


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


class Bound(Protocol):
    """A graph at one shape: its buffers, and what queues a run."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Buffers by name."""
        ...

    @property
    def run(self) -> Callable[[], object]:
        """Queue a run."""
        ...


class Graph(Protocol):
    """What runs a network; `FixedGraph` is ONNX Runtime's."""

    declared: dict[str, Declared]

    def bound(self, counts: Mapping[str, int]) -> Bound:
        """Return the graph for first sizes of its input and its output."""
        ...

    def release(self) -> None:
        """Give memory back."""
        ...


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
            providers = cuda_provider(self.gpu.stream, captured=self._captured)
        # Contrib operators of the CPU know no halves; tests run there.
        halves = self.gpu.where == "cuda"
        return open_session(self.path, None, providers, model=for_gpu(self._data, halves=halves))

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
            some = slice(start, start + self._most)
            queue = partial(self._queue, frames[some], scaled_wh[some], least)
            try:
                parts.append(self.gpu.run(queue))
            except DeviceMemoryError:
                if self._most == 1:
                    raise
                self._most //= 2
                logger.warning("out of memory: %d frames in a call of the detector", self._most)
                continue
            start += self._most
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
            self._graph.release()
            self.gpu.release_unused()
            raise
        numbers = self._fetched(counts.address, np.int32, (len(frames),))
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
            self._fetched(address, np.float32, (number, columns))
            for address, number in zip(addresses, numbers, strict=True)
        ]
        return arrays, self.gpu.queued(arrays, picked)

    def _fetched(self, address: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Any:
        """Queue a copy to page-locked memory; wait before reading it."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        array = self.gpu.pinned(nbytes).as_array(dtype, shape)
        if nbytes:
            self.gpu.device.copy(array.ctypes.data, address, nbytes, self.gpu.stream)
        return array
