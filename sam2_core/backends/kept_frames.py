"""Frames on their way from the detector to the mask model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from sam2_core.preprocess import StagedFrame

# A chunk of 64 frames of 1920x1280.
MOST_BYTES = 512 << 20
# A chunk that has not fetched its frame by then failed, or runs in another process.
FORGOTTEN_S = 60.0


class KeptFrames:
    """Frames on their way, each for the first taker; any thread may use it.

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

    def keep(self, key: Hashable, frame: StagedFrame) -> None:
        """Keep a frame, where there is room; drop what was never fetched."""
        now = self._now()
        with self._lock:
            self._frames = {
                name: (since, frame)
                for name, (since, frame) in self._frames.items()
                if name != key and since >= now - self._forgotten_s
            }
            held = sum(frame.pixels.nbytes for _, frame in self._frames.values())
            if held + frame.pixels.nbytes <= self._most_bytes:
                self._frames[key] = now, frame

    def take(self, key: Hashable) -> StagedFrame | None:
        """Return a frame and keep it no longer; None where it was not kept."""
        with self._lock:
            return self._frames.pop(key, (0.0, None))[1]

    def clear(self) -> None:
        """Keep none any longer."""
        with self._lock:
            self._frames = {}
