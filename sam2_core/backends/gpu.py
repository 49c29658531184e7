"""A process's GPU: its owner, one stream, memory on loan, and frames that networks take."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sam2_core.backends.cuda_device import FLOAT, INT, POINTER, CudaDevice, Event
from sam2_core.backends.cuda_graphs import Graph, Place
from sam2_core.backends.device_owner import DEVICE_OWNER, DeviceOwner
from sam2_core.backends.kept_frames import KeptFrames
from sam2_core.backends.pixel_kernels import SOURCE
from sam2_core.preprocess import StagedFrame, View, checked_image
from sam2_core.types import DeviceMemoryError, ImageArray


class Slot:
    """A buffer on loan; its address joins the free ones when nothing refers to it any more."""

    def __init__(self, address: int, nbytes: int, free: list[int]) -> None:
        self.address, self.nbytes, self._free = address, nbytes, free

    def __del__(self) -> None:
        self._free.append(self.address)

    def as_array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """View of pinned host memory; the array keeps the slot alive."""
        memory: Any = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        memory.slot = self
        return np.ndarray(shape, dtype, memory)


Result = TypeVar("Result")
_KERNELS = ("squares", "letterboxes", "likely")
_THREADS = (32, 8, 1)
# struct View of the kernels
_VIEW = np.dtype([
    ("pixels", "<u8"), ("width", "<i4"), ("left", "<i4"), ("top", "<i4"), ("right", "<i4"),
    ("bottom", "<i4"), ("height", "<i4"),
])  # fmt: skip


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
        places: Sequence[Place],
        target: int,
        size_hw: Sequence[int],
    ) -> list[Any]:
        """Queue frames as letterboxed BGR planes (V, 3, H, W) at an address; as `squares`."""
        slot, kept = self._described([frame.whole() for frame in frames])
        placed = self.memory(16 * len(frames))
        kept += [placed, self.upload(placed.address, np.asarray(places, np.int32))]
        height, width = size_hw
        blocks = (-(-width // _THREADS[0]), -(-height // _THREADS[1]), len(frames))
        arguments = (
            (slot.address, POINTER), (placed.address, POINTER), (target, POINTER),
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
