"""Whose turn it is with the device: one chunk of frames at a time."""

from __future__ import annotations

import threading
import time


class DeviceTurn:
    """One chunk's turn, entered by whoever uses the device for it.

    Args:
        device: held by the chunk whose turn it is: a second one on the device would only take
            memory from the first.

    Attributes:
        waited_s: seconds until the turn came, which are no chunk's work.

    """

    def __init__(self, device: threading.Lock) -> None:
        self._device, self.waited_s = device, 0.0

    def __enter__(self) -> None:
        started = time.perf_counter()
        self._device.acquire()
        self.waited_s += time.perf_counter() - started

    def __exit__(self, *_: object) -> None:
        self._device.release()
