"""Functions of fixed shapes as CUDA graphs, and the sizes that they are made for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from sam2_core.machine_errors import first_line
from sam2_core.types import DeviceMemoryError

Tensors = tuple[torch.Tensor, ...]


def bucket_for(count: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `count`, or `count` itself above the largest."""
    return next((size for size in buckets if size >= count), count)


class Streams(NamedTuple):
    """What all models of a process compute on, upload frames on, and copy results back on."""

    compute: torch.cuda.Stream
    uploads: torch.cuda.Stream
    copies: torch.cuda.Stream


@functools.cache
def streams_of(device: int) -> Streams:
    """Return the streams of this process, the same for every model.

    cuBLAS keeps 33 MiB for every stream that it has seen, and never gives them back: with a stream
    of its own, each model that is loaded and released would cost that. And PyTorch has 32 streams,
    which it hands out in turn: the sixteenth model's copies would be on the one that is captured.

    Args:
        device: its index.

    """
    return Streams(*(torch.cuda.Stream(device) for _ in Streams._fields))


class Captured:
    """A function of fixed shapes as a CUDA graph over its own input and output tensors."""

    def __init__(
        self, function: Callable[..., Any], inputs: Tensors, stream: torch.cuda.Stream, pool: Any
    ) -> None:
        self.inputs = inputs
        self._function = function  # its weights must stay where they are
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # loads kernels, and lets libraries allocate their workspaces
                function(*inputs)
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        mode = "thread_local"  # other threads may take page-locked memory meanwhile
        with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode=mode):
            outputs = function(*inputs)
        self.outputs: Tensors = tuple(outputs)


def out_of_memory(error: Exception) -> DeviceMemoryError:
    """Give cached memory back to the device and say what happened."""
    torch.cuda.empty_cache()
    return DeviceMemoryError(f"the GPU has no memory left: {first_line(error)}")
