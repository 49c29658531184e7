"""A stand-in for a GPU where there is none.

Everything put on a stream waits there until the stream is synchronised, and what is captured does
not run, as on a GPU: a missing synchronisation or an address that changes after a capture shows
here too.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from tests.sam2_core.host_device import HostDevice


class FakeDevice(HostDevice):
    """Host memory, streams that run when synchronised, and graphs."""

    name, capability = "Fake GPU 9000", "sm89"
    current: FakeDevice

    def __init__(self, memory_bytes: int = 1 << 40) -> None:
        super().__init__(memory_bytes)
        FakeDevice.current = self
        self.pending: dict[int, list[Any]] = {}
        self.capturing: list[Any] | None = None
        self.graphs: list[list[Any]] = []
        self.launches = 0

    def release_pinned(self, address: int) -> None:
        assert not any(self.pending.values()), "page-locked memory that copies may still need"
        super().release_pinned(address)

    def create_stream(self) -> int:
        self.pending[len(self.pending) + 1] = []
        return len(self.pending)

    def view(self, address: int, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._inside(address, nbytes)
        buffer = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.frombuffer(buffer, dtype).reshape(shape)

    def enqueue(self, stream: int, work: Any) -> None:
        assert stream in self.pending, "work on a stream that was never created"
        (self.pending[stream] if self.capturing is None else self.capturing).append(work)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.enqueue(stream, partial(super().copy, target, source, nbytes, stream))

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        self.enqueue(stream, partial(super().clear, address, nbytes, stream))

    def run_kernel(
        self, kernel: Any, blocks: Any, threads: Any, arguments: Any, stream: int
    ) -> None:
        run = partial(super().run_kernel, kernel, blocks, threads, arguments, stream)
        self.enqueue(stream, run)

    def synchronize(self, stream: int) -> None:
        assert self.capturing is None, "a synchronisation while capturing breaks the capture"
        work, self.pending[stream] = self.pending[stream], []
        for step in work:
            step()

    def record(self, stream: int) -> Event:
        return Event(self, stream)

    def capture(self, stream: int, work: Any) -> int:
        assert not self.pending[stream], "capture with work still on the stream"
        self.capturing = []
        work()
        self.graphs.append(self.capturing)
        self.capturing = None
        return len(self.graphs) - 1

    def launch(self, graph: int, stream: int) -> None:
        self.launches += 1
        for step in self.graphs[graph]:
            self.enqueue(stream, step)


class Event:
    """A point in a stream; whoever waits for it synchronises."""

    def __init__(self, device: FakeDevice, stream: int) -> None:
        self.device, self.stream, self.work = device, stream, device.pending[stream]

    def wait(self) -> None:
        if not self.done():
            self.device.synchronize(self.stream)

    def done(self) -> bool:
        return self.device.pending[self.stream] is not self.work
