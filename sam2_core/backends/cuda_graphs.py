"""Graphs of any runtime on the process's GPU: what they declare, and their fixed buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sam2_core.types import BOX_POINTS

Shape = tuple[int, ...]
# Of a frame in a network's input, in its pixels: left, top, width, height.
Place = tuple[int, int, int, int]


@dataclass(frozen=True)
class Declared:
    """An input or output as a graph declares it: its type and the shape of one row."""

    dtype: np.dtype[Any]
    row: Shape


@dataclass(frozen=True)
class Tensor(Declared):
    """An input or output with its fixed memory."""

    address: int


def sized(rows: Mapping[str, Declared], counts: Mapping[str, int], points: int) -> dict[str, Shape]:
    """Return whole shapes of inputs and outputs for first sizes, and points of each prompt."""
    return {
        name: (
            counts[name],
            *((points, *tensor.row[1:]) if name in ("points", "labels") else tensor.row),
        )
        for name, tensor in rows.items()
    }


@dataclass(frozen=True)
class Bound:
    """A graph at one shape: its buffers by name, and what queues a run."""

    tensors: Mapping[str, Tensor]
    run: Callable[[], object]


class Graph(Protocol):
    """What a runtime has to be to run the mask model's and the detector's graphs here.

    Everything is called on the device's thread.

    Attributes:
        declared: inputs and outputs by name, inputs first.

    """

    declared: Mapping[str, Declared]

    def bound(self, counts: Mapping[str, int], points: int = BOX_POINTS) -> Bound:
        """Return the graph for these first sizes of its inputs and outputs, and points a prompt.

        Raises:
            DeviceMemoryError: there is no memory for its buffers.

        """
        ...

    def release(self) -> None:
        """Give memory back that the next run can do without."""
        ...
