"""Runs networks of letterboxed frames, such as detectors, on the process's GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import Rows
from sam2_core.backends.cuda_graphs import Graph, Place, Shape
from sam2_core.backends.gpu import Gpu
from sam2_core.backends.onnxruntime_backend import open_session
from sam2_core.backends.onnxruntime_graphs import FixedGraph, cuda_provider
from sam2_core.batching import bucket_for
from sam2_core.preprocess import StagedFrame
from sam2_core.types import DeviceMemoryError, FloatArray

logger = logging.getLogger(__name__)
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
        buckets: numbers of images that it takes, ascending.
        providers: ONNX Runtime's; CUDA on the device's stream when None.
        captured: as a CUDA graph for each number of images.
        graph: what runs it, where that is not ONNX Runtime.

    """

    def __init__(
        self, path: Path, data: bytes, gpu: Gpu, shapes: dict[str, Shape],
        providers: Sequence[Any] | None = None, *, buckets: Sequence[int] = BUCKETS,
        captured: bool = True, graph: Graph | None = None,
    ) -> None:  # fmt: skip
        self.path, self.gpu, self._data = path, gpu, data
        self._providers, self._captured = providers, captured
        self.buckets, self._most = buckets, buckets[-1]
        self._graph: Graph = graph or gpu.run(lambda: FixedGraph(self._open, gpu, shapes))
        self._input, self._output = list(self._graph.declared)

    def _open(self) -> Any:
        providers = self._providers
        if providers is None:
            providers = cuda_provider(self.gpu.stream, captured=self._captured, tf32=True)
        return open_session(self.path, None, providers, model=self._data)

    def start(
        self, frames: Sequence[StagedFrame], places: Sequence[Place], least: float
    ) -> Callable[[], list[LikelyRows]]:
        """Queue frames.

        Args:
            frames: any number.
            places: of each in the network's input.
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
            queue = partial(self._queue, frames[some], places[some], least)
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
        for bucket in self.buckets:
            counts = dict.fromkeys(self._graph.declared, bucket)
            bound = self.gpu.run(partial(self._graph.bound, counts))
            self.gpu.run(bound.run)

    def _queue(
        self, frames: Sequence[StagedFrame], places: Sequence[Place], least: float
    ) -> Callable[[], list[LikelyRows]]:
        bucket = bucket_for(len(frames), self.buckets)
        bound = self._graph.bound(dict.fromkeys(self._graph.declared, bucket))
        target, output = bound.tensors[self._input], bound.tensors[self._output]
        kept = self.gpu.letterboxes(frames, places, target.address, target.row[1:])
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
