"""How long a frame takes: measured by earlier runs, or assumed and said so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tasks.observe.progress import DETECT, DOWNLOAD, SEGMENT

# Until something was measured: about what the bundled model takes on a CPU, and twice what SAM 2's
# base_plus takes for a crowded frame on a GPU.
ASSUMED_SECONDS_PER_FRAME = 0.5
ASSUMED_SECONDS_PER_FRAME_ON_GPU = 0.02
REPORTS_READ = 50


@dataclass(frozen=True)
class Rate:
    """Seconds of a worker's time that one frame takes.

    Attributes:
        seconds_per_frame: estimate, at least a microsecond.
        frames: frames it was measured on, 0 when it is assumed.

    """

    seconds_per_frame: float
    frames: int

    @property
    def text(self) -> str:
        """What to tell a person."""
        if self.frames:
            return f"{self.seconds_per_frame * 1e3:.0f} ms per frame, measured on {self.frames}"
        return f"{self.seconds_per_frame * 1e3:.0f} ms per frame, assumed: nothing was measured yet"


def rate_of(reports: Iterable[dict[str, Any]], *, on_gpu: bool = False) -> Rate:
    """Return the rate that a run's reports of sequences tell, else an assumption.

    The stages of a run overlap, so a frame costs what the longest of them takes.
    """
    frames, total = 0, {DOWNLOAD: 0.0, DETECT: 0.0, SEGMENT: 0.0}
    for report in reports:
        frames += int(report.get("frames", 0))
        for stage in total:
            total[stage] += float(report.get("seconds", {}).get(stage, 0))
    if not frames:
        assumed = ASSUMED_SECONDS_PER_FRAME_ON_GPU if on_gpu else ASSUMED_SECONDS_PER_FRAME
        return Rate(assumed, 0)
    return Rate(max(max(total.values()) / frames, 1e-6), frames)
