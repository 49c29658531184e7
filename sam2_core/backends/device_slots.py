"""Buffers on loan: pinned memory for copies, device memory for the features of encoded images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sam2_core.backends.cuda_device import CudaDevice


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


class _Addressed(Protocol):
    """A fixed buffer of an engine or a session."""

    @property
    def address(self) -> int: ...


class FeatureSlots:
    """Features of encoded images, each image's in slots of its own.

    Graphs read and write fixed buffers. Features are copied from the encoder's and to a decoder's
    (8 MB an image, microseconds), so any number of encoded images can be alive.

    Args:
        device: that the slots are on.
        stream: of the copies.
        image_bytes: size of each feature of one image.

    """

    def __init__(self, device: CudaDevice, stream: int, image_bytes: Mapping[str, int]) -> None:
        self._device, self._stream = device, stream
        self._pools = {
            name: SlotPool(device.allocate, nbytes) for name, nbytes in image_bytes.items()
        }

    def keep(self, encoder: Mapping[str, _Addressed], images: int) -> list[dict[str, Slot]]:
        """Queue copies of the first images' features out of an encoder's buffers."""
        return [self._keep(encoder, row) for row in range(images)]

    def take(self) -> dict[str, Slot]:
        """Lend slots for one image."""
        return {name: pool.take() for name, pool in self._pools.items()}

    def release_free(self) -> None:
        """Release the slots that are not on loan; nothing may be queued on them."""
        for pool in self._pools.values():
            pool.release_free(self._device.release)

    def _keep(self, encoder: Mapping[str, _Addressed], row: int) -> dict[str, Slot]:
        slots = self.take()
        for name, slot in slots.items():
            made = encoder[name].address + row * slot.nbytes
            self._device.copy(slot.address, made, slot.nbytes, self._stream)
        return slots

    def place(self, slots: Mapping[str, Slot], decoder: Mapping[str, _Addressed], row: int) -> None:
        """Queue copies of one image's features to a row of a decoder's buffers."""
        for name, pool in self._pools.items():
            target = decoder[name].address + row * pool.nbytes
            self._device.copy(target, slots[name].address, pool.nbytes, self._stream)
