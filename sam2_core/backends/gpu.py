"""A process's GPU: its owner, one stream, memory on loan, and frames on their way to networks.

Memory, streams, kernels and CUDA graphs go through NVIDIA's own `cuda-bindings`, the plain C API (8
MB, no kernels of its own): PyTorch or CuPy beside it would add gigabytes to a machine that only
labels.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sam2_core.backends.device_owner import DEVICE_OWNER, DeviceOwner
from sam2_core.backends.pixel_kernels import SOURCE
from sam2_core.devices import refuse_if_gone
from sam2_core.machine import how_to_install
from sam2_core.preprocess import StagedFrame, View, checked_image
from sam2_core.types import BOX_POINTS, AutolabelError, DeviceMemoryError, ImageArray, MachineError

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
    """An event on loan, which goes back when nobody refers to it any more."""

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


class Slot:
    """A buffer on loan; its address joins the free ones when nobody refers to it any more."""

    def __init__(self, address: int, nbytes: int, free: list[int]) -> None:
        self.address, self.nbytes, self._free = address, nbytes, free

    def __del__(self) -> None:
        self._free.append(self.address)

    def as_array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """View of pinned host memory; the array keeps the slot alive."""
        memory: Any = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        memory.slot = self
        return np.ndarray(shape, dtype, memory)


# A chunk of 64 frames of 1920x1280.
MOST_BYTES = 512 << 20
# Whoever has not fetched a frame by then failed, or works in another process.
FORGOTTEN_S = 60.0


class KeptFrames:
    """Frames on their way, each for whoever takes it first; any thread may use it.

    What does not fit is not kept, and is read once more: were the oldest dropped instead, two
    chunks that take turns would drop each other's.

    Args:
        most_bytes: pixels that are kept; each also has its copy on the device.
        now: a clock, in seconds.
        forgotten_s: how long a frame is kept at most.

    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        now: Callable[[], float] = time.monotonic,
        forgotten_s: float = FORGOTTEN_S,
    ) -> None:
        self._most_bytes, self._now, self._forgotten_s = most_bytes, now, forgotten_s
        self._lock = threading.Lock()
        self._frames: dict[Hashable, tuple[float, StagedFrame]] = {}

    def keep(self, key: Hashable, frame: StagedFrame) -> None:
        """Keep a frame, where there is room; drop what nobody fetched."""
        now = self._now()
        with self._lock:
            self._frames = {
                name: (since, one)
                for name, (since, one) in self._frames.items()
                if name != key and since >= now - self._forgotten_s
            }
            held = sum(one.pixels.nbytes for _, one in self._frames.values())
            if held + frame.pixels.nbytes <= self._most_bytes:
                self._frames[key] = now, frame

    def take(self, key: Hashable) -> StagedFrame | None:
        """Return a frame and keep it no longer; None where it was not kept."""
        with self._lock:
            return self._frames.pop(key, (0.0, None))[1]

    def clear(self) -> None:
        """Keep none any longer."""
        with self._lock:
            self._frames = {}


Result = TypeVar("Result")
_KERNELS = ("squares", "letterboxes", "likely")
_THREADS = (32, 8, 1)
# struct View of the kernels
_VIEW = np.dtype([
    ("pixels", "<u8"), ("width", "<i4"), ("left", "<i4"), ("top", "<i4"), ("right", "<i4"),
    ("bottom", "<i4"), ("height", "<i4"),
])  # fmt: skip


Shape = tuple[int, ...]


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
        name: (counts[name], *((points, *one.row[1:]) if name in ("points", "labels") else one.row))
        for name, one in rows.items()
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


class Gpu:
    """One device as the detector and the mask model share it.

    Everything but `stage` and `wait` is called on the device's thread (`run`).

    Args:
        device: memory, streams and kernels.
        owner: the device's thread.
        where: ONNX Runtime's name of the memory.

    Raises:
        AutolabelError: NVRTC, which compiles the kernels, is not installed or refuses them.

    Attributes:
        kept: frames that the detector has seen and the mask model will.

    """

    def __init__(self, device: CudaDevice, owner: DeviceOwner, where: str = "cuda") -> None:
        self.device, self.owner, self.where = device, owner, where
        self.stream = device.create_stream()
        # Free addresses by size. A list's append and pop are atomic: slots come back from any
        # thread's garbage collection.
        self._pinned: dict[int, list[int]] = {}
        self._memory: dict[int, list[int]] = {}
        self._in_use: deque[tuple[Event, tuple[Any, ...]]] = deque()
        self.kept = KeptFrames()
        self.kernels = device.compile(SOURCE, _KERNELS)

    def run(self, work: Callable[[], Result]) -> Result:
        """Run on the device's thread."""
        return self.owner.run(work)

    def run_beside(self, graphs: Iterable[Graph], work: Callable[[], Result]) -> Result:
        """Run what graphs are used for; where memory is too little, all that can be is released."""

        def releasing() -> Result:
            try:
                return work()
            except DeviceMemoryError:
                self.device.synchronize(self.stream)  # earlier frames may still be in buffers
                for graph in graphs:
                    graph.release()
                self.release_unused()
                raise

        return self.run(releasing)

    def queued(self, *kept: Any) -> Callable[[], None]:
        """Return a function that waits, on any thread, for what is queued by now.

        Args:
            kept: what must live until then, whether somebody waits or not.

        """
        event = self.device.record(self.stream)
        self._in_use.append((event, kept))
        self._forget_done()
        return lambda: self.owner.wait(event.wait)

    def _forget_done(self) -> None:
        while self._in_use and self._in_use[0][0].done():
            self._in_use.popleft()

    def _lent(
        self, free: dict[int, list[int]], allocate: Callable[[int], int], nbytes: int
    ) -> Slot:
        """Borrow memory, in sizes of powers of two so that few serve all."""
        size = 1 << max(nbytes - 1, 1).bit_length()
        addresses = free.setdefault(size, [])
        try:
            address = addresses.pop()
        except IndexError:
            address = self.run(lambda: allocate(size))
        return Slot(address, size, addresses)

    def pinned(self, nbytes: int) -> Slot:
        """Borrow page-locked memory."""
        return self._lent(self._pinned, self.device.allocate_pinned, nbytes)

    def memory(self, nbytes: int) -> Slot:
        """Borrow device memory; what gets it next is queued behind what uses it now."""
        return self._lent(self._memory, self.device.allocate, nbytes)

    def release_unused(self) -> None:
        """Give memory that nothing needs now, page-locked memory too, back to the driver."""
        self.kept.clear()
        self.device.synchronize(self.stream)
        self._forget_done()
        release, release_pinned = self.device.release, self.device.release_pinned
        for free, give_back in ((self._memory, release), (self._pinned, release_pinned)):
            for addresses in list(free.values()):
                with contextlib.suppress(IndexError):  # none is left, or it was lent meanwhile
                    while True:
                        give_back(addresses.pop())
        torch = sys.modules.get("torch")  # where it makes the masks; it keeps what tensors had
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def stage(self, image: ImageArray) -> StagedFrame:
        """Copy a decoded frame to where the device fetches it; on any thread."""
        checked_image(image)
        pixels = self.pinned(image.nbytes).as_array(np.uint8, image.shape)
        np.copyto(pixels, image)
        return StagedFrame(pixels, self)

    def staged(self, frame: StagedFrame) -> StagedFrame:
        """Return a frame that was staged here as it is, and another one's copy."""
        return frame if frame.gpu is self else self.stage(frame.pixels)

    def upload(self, address: int, values: np.ndarray[Any, Any]) -> Slot:
        """Queue a copy of values to the device; the slot must live until then (`queued`)."""
        slot = self.pinned(values.nbytes)
        view = slot.as_array(values.dtype, values.shape)
        np.copyto(view, values)
        self.device.copy(address, slot.address, values.nbytes, self.stream)
        return slot

    def download(
        self, address: int, dtype: npt.DTypeLike, shape: tuple[int, ...]
    ) -> npt.NDArray[Any]:
        """Queue a copy to page-locked memory; wait (`queued`) before reading it."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        array = self.pinned(nbytes).as_array(np.dtype(dtype), shape)
        if nbytes:
            self.device.copy(array.ctypes.data, address, nbytes, self.stream)
        return array

    def _address(self, frame: StagedFrame) -> int:
        if frame.on_device is None:
            slot = self.memory(frame.pixels.nbytes)
            source = frame.pixels.ctypes.data
            self.device.copy(slot.address, source, frame.pixels.nbytes, self.stream)
            frame.on_device = slot
        return int(frame.on_device.address)

    def _described(self, views: Sequence[View]) -> tuple[Slot, list[Any]]:
        """Queue the upload of frames and of their views' description."""
        described = np.zeros(len(views), _VIEW)
        for row, view in enumerate(views):
            height, width = view.frame.size_hw
            described[row] = (self._address(view.frame), width, *view.region_xyxy_px, height)
        slot = self.memory(described.nbytes)
        return slot, [
            slot,
            self.upload(slot.address, described.view(np.uint8)),
            [v.frame for v in views],
        ]

    def squares(self, views: Sequence[View], target: int, size: int) -> list[Any]:
        """Queue views as float planes (V, 3, size, size) at an address.

        Returns:
            What must live until that is done.

        """
        slot, kept = self._described(views)
        blocks = (-(-size // _THREADS[0]), -(-size // _THREADS[1]), len(views))
        arguments = ((slot.address, POINTER), (target, POINTER), (size, INT))
        self.device.run_kernel(self.kernels["squares"], blocks, _THREADS, arguments, self.stream)
        return kept

    def letterboxes(
        self,
        frames: Sequence[StagedFrame],
        scaled_wh: Sequence[tuple[int, int]],
        target: int,
        size_hw: Sequence[int],
    ) -> list[Any]:
        """Queue frames as letterboxed BGR planes (V, 3, H, W) at an address; as `squares`."""
        slot, kept = self._described([frame.whole() for frame in frames])
        sizes = self.memory(8 * len(frames))
        kept += [sizes, self.upload(sizes.address, np.asarray(scaled_wh, np.int32))]
        height, width = size_hw
        blocks = (-(-width // _THREADS[0]), -(-height // _THREADS[1]), len(frames))
        arguments = (
            (slot.address, POINTER), (sizes.address, POINTER), (target, POINTER),
            (width, INT), (height, INT),
        )  # fmt: skip
        kernel = self.kernels["letterboxes"]
        self.device.run_kernel(kernel, blocks, _THREADS, arguments, self.stream)
        return kept

    def likely(
        self, rows: int, shape: tuple[int, int, int], least: float, most: int
    ) -> tuple[Slot, Slot]:
        """Queue the choice of a detector's rows that may be boxes.

        Args:
            rows: address of float32 (B, cells, columns).
            shape: those sizes.
            least: product of objectness and class score that a box needs.
            most: rows that are kept of each image.

        Returns:
            int32 (B,), how many there are, and float32 (B, most, 1 + columns), cell and row, in
            any order; both on the device.

        """
        images, cells, columns = shape
        counts = self.memory(4 * images)
        picked = self.memory(4 * images * most * (columns + 1))
        self.device.clear(counts.address, 4 * images, self.stream)
        arguments = (
            (rows, POINTER), (cells, INT), (columns, INT), (least, FLOAT), (most, INT),
            (counts.address, POINTER), (picked.address, POINTER),
        )  # fmt: skip
        blocks = (-(-cells // 256), 1, images)
        self.device.run_kernel(self.kernels["likely"], blocks, (256, 1, 1), arguments, self.stream)
        return counts, picked


_gpu: Gpu | None = None
_making = threading.Lock()


def opened_gpu() -> Gpu | None:
    """Return this process's GPU, if it uses one by now."""
    return _gpu


def process_gpu() -> Gpu:
    """Return this process's GPU, opened the first time.

    Raises:
        AutolabelError: there is none that can be used.

    """
    global _gpu  # noqa: PLW0603 - one a process
    with _making:
        if _gpu is None:
            _gpu = DEVICE_OWNER.run(lambda: Gpu(CudaDevice(), DEVICE_OWNER))
        return _gpu
