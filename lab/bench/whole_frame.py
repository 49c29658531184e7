"""Whole frames, from the image file's bytes to COCO masks, and the memory that they take."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from lab.bench.decoding import encode_and_wait
from lab.bench.frame import BenchFrame
from sam2_core.segmenter import Segmenter
from sam2_core.types import Masks


def segment_frame(segmenter: Segmenter, frame: BenchFrame) -> Masks:
    """Read, segment and encode one frame, one stage after the other."""
    image = frame.read()
    prepared = segmenter.prepare(image, frame.boxes)
    low_res = segmenter.run([prepared])[0]
    return segmenter.finish(prepared, low_res)


def memory_of_a_frame(segmenter: Segmenter, frame: BenchFrame) -> dict[str, float | str]:
    """Host memory before and while one frame is segmented, with the model loaded and run once."""
    prepared = segmenter.prepare(frame.read(), frame.boxes)
    encode_and_wait(segmenter.backend, prepared.images_model)
    with PeakMemory() as memory:
        segment_frame(segmenter, frame)
    if not memory.peak:
        return {"reason": "this system does not tell a process its memory"}
    return {
        "loaded_mb": round(memory.before / 1e6, 1),
        "peak_mb": round(memory.peak / 1e6, 1),
        "beyond_loaded_mb": round((memory.peak - memory.before) / 1e6, 1),
    }


def resident_bytes() -> int | None:
    """Return this process's resident memory; None where the system does not say (not Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """Largest resident memory inside a `with` block, sampled every 2 ms."""

    def __init__(self) -> None:
        self.before = self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._stop.is_set():
            self.peak = max(self.peak, resident_bytes() or 0)
            time.sleep(0.002)

    def __enter__(self) -> PeakMemory:
        self.before = self.peak = resident_bytes() or 0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, resident_bytes() or 0)
