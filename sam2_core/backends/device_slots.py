"""Buffers on loan: pinned memory for copies, device memory for features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


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
