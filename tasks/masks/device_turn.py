"""Whose turn it is with the device: one chunk of frames at a time in a process."""

from __future__ import annotations

import threading
import time

# A second chunk on the device would only take memory from the first.
_lock = threading.Lock()


class DeviceTurn:
    """One chunk's turn, entered by whoever uses the device for it.

    Attributes:
        waited_s: seconds until the turn came, which are no chunk's work.

    """

    def __init__(self) -> None:
        self.waited_s = 0.0

    def __enter__(self) -> None:
        started = time.perf_counter()
        _lock.acquire()
        self.waited_s += time.perf_counter() - started

    def __exit__(self, *_: object) -> None:
        _lock.release()
