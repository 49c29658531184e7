"""Seconds spent in each stage of the frame loop, summed over threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# read: bytes to pixels; preprocess: resize and prompts; encode, decode: the model; postprocess:
# masks; wait: the device had nothing to do.
STAGES = ("read", "preprocess", "encode", "decode", "postprocess", "wait")


class StageTimes:
    """A clock for each stage; threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time inside the block to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - started)

    def add(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage."""
        with self._lock:
            self._seconds[stage] += seconds

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every stage so far."""
        with self._lock:
            return dict(self._seconds)
