"""A stand-in for a GPU where there is none.

"Device memory" is host memory that only the fake device may copy. Everything put on a stream waits
there until the stream is synchronised, and what is captured does not run, as on a GPU: a missing
synchronisation or an address that changes after a capture shows here too.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class FakeDevice:
    """Host memory, streams that run when synchronised, and graphs."""

    name = "Fake GPU 9000"
    current: FakeDevice

    def __init__(self, memory_bytes: int = 1 << 40) -> None:
        FakeDevice.current = self
        self.left = memory_bytes
        self.memory: dict[int, Any] = {}
        self.pending: dict[int, list[Any]] = {}
        self.capturing: list[Any] | None = None
        self.graphs: list[list[Any]] = []
        self.launches = self.queued = self.done = 0

    def allocate(self, nbytes: int) -> int:
        from sam2_core.types import DeviceMemoryError

        self.left -= nbytes
        if self.left < 0:
            raise DeviceMemoryError("fake device: out of memory")
        buffer = (ctypes.c_uint8 * max(nbytes, 1))()
        # Garbage, as on a device: reading what nobody wrote is noticed.
        ctypes.memset(buffer, 0xEE, nbytes)
        address = ctypes.addressof(buffer)
        self.memory[address] = buffer
        return address

    def release(self, address: int) -> None:
        self.left += len(self.memory.pop(address))

    def allocate_pinned(self, nbytes: int) -> int:
        return self.allocate(nbytes)

    def release_pinned(self, address: int) -> None:
        assert not any(self.pending.values()), "page-locked memory that copies may still need"
        self.release(address)

    def create_stream(self) -> int:
        self.pending[len(self.pending) + 1] = []
        return len(self.pending)

    def check(self, address: int, nbytes: int) -> None:
        inside = any(
            start <= address and address + nbytes <= start + len(buffer)
            for start, buffer in self.memory.items()
        )
        assert inside, f"{nbytes} bytes at {address} are outside every allocation"

    def view(self, address: int, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.check(address, nbytes)
        buffer = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.frombuffer(buffer, dtype).reshape(shape)

    def enqueue(self, stream: int, work: Any) -> None:
        assert stream in self.pending, "work on a stream that was never created"
        self.queued += 1
        (self.pending[stream] if self.capturing is None else self.capturing).append(work)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.check(target, nbytes)
        self.check(source, nbytes)
        self.enqueue(stream, lambda: ctypes.memmove(target, source, nbytes))

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        self.check(address, nbytes)
        self.enqueue(stream, lambda: ctypes.memset(address, 0, nbytes))

    def synchronize(self, stream: int) -> None:
        assert self.capturing is None, "a synchronisation while capturing breaks the capture"
        work, self.pending[stream] = self.pending[stream], []
        for step in work:
            step()
        self.done = self.queued

    def record(self, stream: int) -> Event:
        return Event(self, stream)

    def capture(self, stream: int, work: Any) -> int:
        assert not self.pending[stream], "capture with work still on the stream"
        self.capturing = []
        work()
        self.graphs.append(self.capturing)
        self.capturing = None
        return len(self.graphs) - 1

    def compile(self, source: str, names: Any) -> dict[str, Any]:
        from tests.sam2_core.host_device import compiled_for_host

        library = compiled_for_host(source)
        return {name: getattr(library, f"run_{name}") for name in names}

    def run_kernel(
        self, kernel: Any, blocks: Any, threads: Any, arguments: Any, stream: int
    ) -> None:
        sizes = [ctypes.c_int(n) for n in (*blocks, *threads[:2])]
        given = [kind(value) for value, kind in arguments]
        self.enqueue(stream, lambda: kernel(*sizes, *given))

    def launch(self, graph: int, stream: int) -> None:
        self.launches += 1
        for step in self.graphs[graph]:
            self.enqueue(stream, step)


class Event:
    """Comes when the stream is synchronised; whoever waits does that."""

    def __init__(self, device: FakeDevice, stream: int) -> None:
        self.device, self.stream, self.at = device, stream, device.queued

    def wait(self) -> None:
        if not self.done():
            FakeDevice.synchronize(self.device, self.stream)

    def done(self) -> bool:
        return self.device.done >= self.at
