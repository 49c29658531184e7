"""A polite end: after SIGTERM the chunk at hand is finished, and nothing new is begun."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from sam2_core.types import AutolabelError


class StoppedError(AutolabelError):
    """Not begun, because this process was asked to stop."""


class StopRequest:
    """Whether a run was asked to begin nothing more; any thread may ask."""

    def __init__(self) -> None:
        self._requested = threading.Event()

    @property
    def requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask the run to begin nothing more."""
        self._requested.set()

    def check(self) -> None:
        """Call before beginning a piece of work.

        Raises:
            StoppedError: the run was asked to stop.

        """
        if self.requested:
            raise StoppedError("not begun: this worker was asked to stop")

    @contextlib.contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Take SIGTERM as the request while the block runs (main thread only)."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            self.request()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
