"""Device memory, streams and CUDA graphs, through NVIDIA's own `cuda-bindings`.

Only what a TensorRT engine or an ONNX Runtime session needs around it. cuda-bindings is the plain C
API (8 MB, no kernels of its own): PyTorch or CuPy beside it would add gigabytes to a machine that
only labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sam2_core.types import AutolabelError, DeviceMemoryError


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
        self._call("cudaSetDevice", index)
        properties = self._call("cudaGetDeviceProperties", index)
        name = properties.name
        self.name = name.decode().rstrip("\0") if isinstance(name, bytes) else str(name)
        # Graph handles are objects in cuda-bindings; keep them alive under their integer.
        self._graphs: dict[int, Any] = {}

    def _call(self, name: str, *arguments: object) -> Any:
        status, *values = getattr(self._runtime, name)(*arguments)
        if status == self._runtime.cudaError_t.cudaErrorMemoryAllocation:
            raise DeviceMemoryError(f"the GPU has no memory left ({name})")
        if status != self._runtime.cudaError_t.cudaSuccess:
            raise AutolabelError(f"CUDA: {name} failed with {status.name}")
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


def _cuda_runtime() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise AutolabelError(
            "this backend needs cuda-bindings: pip install 'sam2-autolabel[gpu]' (ONNX Runtime), "
            "or 'sam2-autolabel[tensorrt]'"
        ) from error
    status, count = runtime.cudaGetDeviceCount()
    if status != runtime.cudaError_t.cudaSuccess or not count:
        raise AutolabelError(
            f"no NVIDIA GPU is usable here ({status.name}): run `autolabel doctor`, or choose "
            "--backend onnxruntime"
        )
    return runtime
