"""Device memory, streams and CUDA graphs, through NVIDIA's own `cuda-bindings`.

Only what a TensorRT engine or an ONNX Runtime session needs around it. cuda-bindings is the plain C
API (8 MB, no kernels of its own): PyTorch or CuPy beside it would add gigabytes to a machine that
only labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sam2_core.machine import how_to_install
from sam2_core.types import AutolabelError, DeviceMemoryError, MachineError


class Event(Protocol):
    """A point in a stream that the device comes to."""

    def wait(self) -> None:
        """Wait until the device has come to it; on any thread."""
        ...

    def done(self) -> bool:
        """Whether it has; on the device's thread."""
        ...


class Device(Protocol):
    """A GPU, as far as the backends use it. Addresses and handles are plain integers."""

    name: str

    def allocate(self, nbytes: int) -> int:
        """Device memory, 256-byte aligned."""
        ...

    def release(self, address: int) -> None:
        """Give device memory back."""
        ...

    def allocate_pinned(self, nbytes: int) -> int:
        """Page-locked host memory: copies from and to it are asynchronous."""
        ...

    def release_pinned(self, address: int) -> None:
        """Give page-locked memory back; nothing may be queued on it."""
        ...

    def create_stream(self) -> int:
        """Create a stream, not the default one, on which nothing could be captured."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two of device and pinned memory, in stream order."""
        ...

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Fill device memory with zeros."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait until everything on the stream is done."""
        ...

    def record(self, stream: int) -> Event:
        """Return what tells of all that is on the stream by now."""
        ...

    def compile(self, source: str, names: Sequence[str]) -> dict[str, Any]:
        """Compile CUDA C++ for this device; its kernels by name, for `run_kernel`."""
        ...

    def run_kernel(
        self, kernel: Any, blocks: tuple[int, int, int], threads: tuple[int, int, int],
        arguments: Sequence[tuple[Any, Any]], stream: int,
    ) -> None:  # fmt: skip
        """Queue a kernel; arguments are pairs of a value and its ctypes type."""
        ...

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """Record what `work` puts on the stream, without running it; returns a graph."""
        ...

    def launch(self, graph: int, stream: int) -> None:
        """Replay a captured graph."""
        ...


class CudaDevice:
    """The current CUDA device."""

    def __init__(self, index: int = 0) -> None:
        self._runtime = _cuda_runtime()
        self._index = index
        self._call("cudaSetDevice", index)
        properties = self._call("cudaGetDeviceProperties", index)
        name = properties.name
        self.name = name.decode().rstrip("\0") if isinstance(name, bytes) else str(name)
        # Graph handles are objects in cuda-bindings; keep them alive under their integer.
        self._graphs: dict[int, Any] = {}
        # Never destroyed: they come back from any thread, also while a graph is captured.
        self._events: list[Any] = []

    def _call(self, name: str, *arguments: object) -> Any:
        status, *values = getattr(self._runtime, name)(*arguments)
        if status == self._runtime.cudaError_t.cudaErrorMemoryAllocation:
            raise DeviceMemoryError(f"the GPU has no memory left ({name})")
        if status != self._runtime.cudaError_t.cudaSuccess:
            raise MachineError(f"CUDA: {name} failed with {status.name}")
        return values[0] if values else None

    def allocate(self, nbytes: int) -> int:
        """Allocate at least one byte of device memory."""
        return int(self._call("cudaMalloc", max(nbytes, 1)))

    def release(self, address: int) -> None:
        """Free device memory."""
        self._call("cudaFree", address)

    def allocate_pinned(self, nbytes: int) -> int:
        """Allocate page-locked host memory."""
        return int(self._call("cudaHostAlloc", max(nbytes, 1), 0))

    def release_pinned(self, address: int) -> None:
        """Free page-locked host memory."""
        self._call("cudaFreeHost", address)

    def create_stream(self) -> int:
        """Create a stream that does not wait for the default one."""
        flags = self._runtime.cudaStreamNonBlocking
        return int(self._call("cudaStreamCreateWithFlags", flags))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy; the direction follows from the addresses (unified addressing)."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDefault
        self._call("cudaMemcpyAsync", target, source, nbytes, kind, stream)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Fill device memory with zeros."""
        self._call("cudaMemsetAsync", address, 0, nbytes, stream)

    def synchronize(self, stream: int) -> None:
        """Wait for the stream."""
        self._call("cudaStreamSynchronize", stream)

    def record(self, stream: int) -> Event:
        """Record an event."""
        try:
            event = self._events.pop()
        except IndexError:
            # Waiting threads sleep (cudaEventBlockingSync); nothing is timed (DisableTiming).
            event = self._call("cudaEventCreateWithFlags", 0x01 | 0x02)
        self._call("cudaEventRecord", event, stream)
        return _Event(self, event)

    def _query(self, event: Any) -> bool:
        (status,) = self._runtime.cudaEventQuery(event)
        if status == self._runtime.cudaError_t.cudaErrorNotReady:
            return False
        if status != self._runtime.cudaError_t.cudaSuccess:
            raise MachineError(f"CUDA: cudaEventQuery failed with {status.name}")
        return True

    def compile(self, source: str, names: Sequence[str]) -> dict[str, Any]:
        """Compile with NVRTC; `AutolabelError` where that is not installed or refuses."""
        from sam2_core.backends.cuda_kernels import compiled

        major = self._call("cudaDeviceGetAttribute", self._attribute("Major"), self._index)
        minor = self._call("cudaDeviceGetAttribute", self._attribute("Minor"), self._index)
        return compiled(source, names, f"sm_{major}{minor}")

    def _attribute(self, part: str) -> Any:
        kinds = self._runtime.cudaDeviceAttr
        return getattr(kinds, f"cudaDevAttrComputeCapability{part}")

    def run_kernel(
        self, kernel: Any, blocks: tuple[int, int, int], threads: tuple[int, int, int],
        arguments: Sequence[tuple[Any, Any]], stream: int,
    ) -> None:  # fmt: skip
        """Queue a compiled kernel."""
        from sam2_core.backends.cuda_kernels import launch

        launch(kernel, blocks, threads, arguments, stream)

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """Capture in thread-local mode: other threads may go on allocating."""
        mode = self._runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)
        try:
            work()
        finally:
            recorded = self._call("cudaStreamEndCapture", stream)
        graph = self._call("cudaGraphInstantiate", recorded, 0)
        self._call("cudaGraphDestroy", recorded)
        self._graphs[int(graph)] = graph
        return int(graph)

    def launch(self, graph: int, stream: int) -> None:
        """Replay a captured graph."""
        self._call("cudaGraphLaunch", self._graphs[graph], stream)


class _Event:
    """An event on loan, which goes back when nobody refers to it any more."""

    def __init__(self, device: CudaDevice, event: Any) -> None:
        self._device, self._event = device, event

    def wait(self) -> None:
        """Wait for the event."""
        self._device._call("cudaEventSynchronize", self._event)

    def done(self) -> bool:
        """Whether the device has come to it."""
        return self._device._query(self._event)

    def __del__(self) -> None:
        self._device._events.append(self._event)


def _cuda_runtime() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise AutolabelError(
            f"this backend needs cuda-bindings: {how_to_install('gpu')} (ONNX Runtime), or the "
            "extra tensorrt in the same way"
        ) from error
    status, count = runtime.cudaGetDeviceCount()
    if status != runtime.cudaError_t.cudaSuccess or not count:
        from sam2_core.backend_choice import refuse_if_gone

        refuse_if_gone(0)
        raise AutolabelError(
            f"no NVIDIA GPU is usable here ({status.name}): run `autolabel doctor`, or choose "
            "--backend onnxruntime"
        )
    return runtime
