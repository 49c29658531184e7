"""Staged frames between two networks: what the detector has seen, the mask model sees next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from sam2_core.preprocess import StagedFrame

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
