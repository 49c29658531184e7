"""A polite end: after SIGTERM the chunk at hand is finished, and nothing new is begun."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from sam2_core.types import AutolabelError

_requested = threading.Event()


class StoppedError(AutolabelError):
    """Not begun, because this process was asked to stop."""


def request() -> None:
    """Ask this process to begin nothing more."""
    _requested.set()


def requested() -> bool:
    """Whether this process was asked to stop."""
    return _requested.is_set()


def check() -> None:
    """Call before beginning a piece of work.

    Raises:
        StoppedError: this process was asked to stop.

    """
    if _requested.is_set():
        raise StoppedError("not begun: this worker was asked to stop")


@contextlib.contextmanager
def on_sigterm() -> Iterator[None]:
    """Take SIGTERM as a request to stop while the block runs (main thread only)."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        request()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _requested.clear()
