"""A polite end: after SIGTERM the chunk at hand is finished, and nothing new is started."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from sam2_core.types import AutolabelError


class StoppedError(AutolabelError):
    """Not started, because this process was asked to stop."""


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
            raise StoppedError("not started: this worker was asked to stop")

    def on_sigterm(self) -> AbstractContextManager[None]:
        """Take SIGTERM as the request while a block runs (main thread only)."""
        return handling(lambda *_: self.request(), signal.SIGTERM)


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], object], *numbers: signal.Signals) -> Iterator[None]:
    """Let a function handle signals while the block runs.

    Signals are the main thread's; in another one, their owner handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, kept in before.items():
            signal.signal(number, kept)
