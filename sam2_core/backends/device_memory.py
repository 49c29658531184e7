"""Buffers on loan, and staged frames that the detector has seen and the mask model sees next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.preprocess import StagedFrame


class Slot:
    """A buffer on loan from a pool; it goes back when nobody refers to it any more."""

    def __init__(self, pool: SlotPool, address: int) -> None:
        self.address = address
        self.nbytes = pool.nbytes
        self._pool = pool

    def __del__(self) -> None:
        self._pool.give_back(self.address)

    def as_array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """View of pinned host memory; the array keeps the slot alive."""
        return np.asarray(_HostView(self, np.dtype(dtype), shape))


class _HostView:
    """NumPy's array interface over a slot, so that the array's base holds the slot."""

    def __init__(self, slot: Slot, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._slot = slot
        self.__array_interface__ = {
            "data": (slot.address, False),
            "typestr": dtype.str,
            "shape": shape,
            "version": 3,
        }


class SlotPool:
    """Buffers of one size, allocated when first needed and then reused for ever."""

    def __init__(self, allocate: Callable[[int], int], nbytes: int) -> None:
        self._allocate = allocate
        self.nbytes = nbytes
        # A list's append and pop are atomic: slots come back from any thread's garbage collection.
        self._free: list[int] = []
        self.allocated = 0

    def take(self) -> Slot:
        """Lend a buffer."""
        try:
            address = self._free.pop()
        except IndexError:
            address = self._allocate(self.nbytes)
            self.allocated += 1
        return Slot(self, address)

    def give_back(self, address: int) -> None:
        """Take a buffer back."""
        self._free.append(address)

    def release_free(self, release: Callable[[int], None]) -> None:
        """Release the buffers that are not on loan."""
        while self._free:
            try:
                address = self._free.pop()
            except IndexError:  # lent meanwhile
                return
            release(address)


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
        self._nbytes = 0

    def keep(self, key: Hashable, frame: StagedFrame) -> None:
        """Keep a frame, where there is room."""
        with self._lock:
            self._take(key)
            self._forget()
            if self._nbytes + frame.pixels.nbytes <= self._most_bytes:
                self._frames[key] = self._now(), frame
                self._nbytes += frame.pixels.nbytes

    def take(self, key: Hashable) -> StagedFrame | None:
        """Return a frame and keep it no longer; None where it was not kept."""
        with self._lock:
            return self._take(key)

    def clear(self) -> None:
        """Keep none any longer."""
        with self._lock:
            self._frames, self._nbytes = {}, 0

    def _take(self, key: Hashable) -> StagedFrame | None:
        _, frame = self._frames.pop(key, (0.0, None))
        self._nbytes -= frame.pixels.nbytes if frame else 0
        return frame

    def _forget(self) -> None:
        """Drop what nobody fetched; the oldest come first."""
        before = self._now() - self._forgotten_s
        while self._frames and next(iter(self._frames.values()))[0] < before:
            self._take(next(iter(self._frames)))
