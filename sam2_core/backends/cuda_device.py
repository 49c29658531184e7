"""A CUDA device through NVIDIA's own `cuda-bindings`: memory, streams, kernels and CUDA graphs.

That is the plain C API (8 MB, no kernels of its own): PyTorch or CuPy beside it would add gigabytes
to a machine that only labels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from sam2_core.devices import refuse_if_gone
from sam2_core.machine import how_to_install
from sam2_core.types import AutolabelError, DeviceMemoryError, MachineError

POINTER, INT, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_float


class CudaDevice:
    """The current CUDA device. Addresses and handles are plain integers.

    Attributes:
        name: as the driver has it.
        capability: compute capability, such as sm89.

    """

    def __init__(self, index: int = 0) -> None:
        self._runtime = _cuda_runtime()
        self._call("cudaSetDevice", index)
        properties = self._call("cudaGetDeviceProperties", index)
        name = properties.name
        self.name = name.decode().rstrip("\0") if isinstance(name, bytes) else str(name)
        self.capability = f"sm{properties.major}{properties.minor}"
        # Graph handles are objects in cuda-bindings; keep them alive under their integer.
        self._graphs: dict[int, Any] = {}
        # Never destroyed: they come back from any thread, also while a graph is captured.
        self._events: list[Any] = []

    def _call(self, name: str, *arguments: object) -> Any:
        return _checked(getattr(self._runtime, name)(*arguments), name)

    def allocate(self, nbytes: int) -> int:
        """Allocate at least one byte of device memory."""
        return int(self._call("cudaMalloc", max(nbytes, 1)))

    def release(self, address: int) -> None:
        """Free device memory."""
        self._call("cudaFree", address)

    def allocate_pinned(self, nbytes: int) -> int:
        """Allocate page-locked host memory: copies from and to it are asynchronous."""
        return int(self._call("cudaHostAlloc", max(nbytes, 1), 0))

    def release_pinned(self, address: int) -> None:
        """Free page-locked host memory; nothing may be queued on it."""
        self._call("cudaFreeHost", address)

    def create_stream(self) -> int:
        """Create a stream that does not wait for the default one."""
        flags = self._runtime.cudaStreamNonBlocking
        return int(self._call("cudaStreamCreateWithFlags", flags))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two of device and pinned memory, in stream order."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDefault
        self._call("cudaMemcpyAsync", target, source, nbytes, kind, stream)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Fill device memory with zeros."""
        self._call("cudaMemsetAsync", address, 0, nbytes, stream)

    def synchronize(self, stream: int) -> None:
        """Wait until everything on the stream is done."""
        self._call("cudaStreamSynchronize", stream)

    def record(self, stream: int) -> Event:
        """Return what tells of all that is on the stream by now."""
        try:
            event = self._events.pop()
        except IndexError:
            # Waiting threads sleep (cudaEventBlockingSync); nothing is timed (DisableTiming).
            event = self._call("cudaEventCreateWithFlags", 0x01 | 0x02)
        self._call("cudaEventRecord", event, stream)
        return Event(self, event)

    def compile(self, source: str, names: Sequence[str]) -> dict[str, Any]:
        """Compile CUDA C++ with NVRTC (0.3 s, no compiler); its kernels by name, for `run_kernel`.

        Args:
            source: one file; its kernels are `extern "C"`.
            names: of the kernels.

        Raises:
            AutolabelError: NVRTC is not installed, or refuses the source.

        """
        try:
            from cuda.bindings import driver, nvrtc

            image = _image(nvrtc, source, self.capability.replace("sm", "sm_"))
        except (ImportError, RuntimeError) as error:  # cuda-bindings did not find the library
            raise AutolabelError(
                f"NVRTC, which compiles the kernels that cut frames, cannot be used ({error}): "
                f"{how_to_install('gpu')} brings it"
            ) from error
        module = _checked(driver.cuModuleLoadData(image), "cuModuleLoadData")
        return {
            name: _checked(driver.cuModuleGetFunction(module, name.encode()), name)
            for name in names
        }

    def run_kernel(
        self, kernel: Any, blocks: tuple[int, int, int], threads: tuple[int, int, int],
        arguments: Sequence[tuple[Any, Any]], stream: int,
    ) -> None:  # fmt: skip
        """Queue a kernel; arguments are pairs of a value and its ctypes type."""
        from cuda.bindings import driver

        values, kinds = zip(*arguments, strict=True)
        answer = driver.cuLaunchKernel(kernel, *blocks, *threads, 0, stream, (values, kinds), 0)
        _checked(answer, "cuLaunchKernel")

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """Record what `work` puts on the stream, without running it; returns a graph.

        In thread-local mode: other threads may go on allocating.
        """
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


class Event:
    """An event on loan, which goes back when nothing refers to it any more."""

    def __init__(self, device: CudaDevice, event: Any) -> None:
        self._device, self._event = device, event

    def wait(self) -> None:
        """Wait until the device has come to it; on any thread."""
        self._device._call("cudaEventSynchronize", self._event)

    def done(self) -> bool:
        """Whether the device has come to it; on the device's thread."""
        (status,) = self._device._runtime.cudaEventQuery(self._event)
        if status.name == "cudaErrorNotReady":
            return False
        _checked((status,), "cudaEventQuery")
        return True

    def __del__(self) -> None:
        self._device._events.append(self._event)


def _image(nvrtc: Any, source: str, architecture: str) -> bytes:
    program = _checked(
        nvrtc.nvrtcCreateProgram(source.encode(), b"pixels.cu", 0, [], []), "nvrtcCreateProgram"
    )
    options = [f"--gpu-architecture={architecture}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        size = _checked(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AutolabelError(f"NVRTC refuses the kernels for {architecture}: {log.decode()}")
    image: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    _checked(nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    return image


def _checked(answer: tuple[Any, ...], name: str) -> Any:
    """Return what a call of the runtime, the driver or NVRTC gave; raise where it failed."""
    status, *values = answer
    if status.name == "cudaErrorMemoryAllocation":
        raise DeviceMemoryError(f"the GPU has no memory left ({name})")
    if int(status) != 0:
        raise MachineError(f"CUDA: {name} failed with {status.name}")
    return values[0] if values else None


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
        refuse_if_gone(0)
        raise AutolabelError(
            f"no NVIDIA GPU is usable here ({status.name}): run `autolabel doctor`, or choose "
            "--backend onnxruntime"
        )
    return runtime
