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
from sam2_core.backends.device_memory import Slot
from sam2_core.backends.gpu import Gpu, Graph, Shape
from sam2_core.backends.onnx_in_halves import for_gpu
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
