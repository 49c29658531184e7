"""How long a frame takes: as a run's reports tell, or the last run of its kind on this machine."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sam2_core.cache import cache_folder, make_folder
from tasks.frames.identity import safe_name
from tasks.observe.progress import DETECT, DOWNLOAD, SEGMENT
from tasks.pipeline.outcome import SequenceOutcome
from tasks.store import storage
from tasks.store.artifacts import RunStamp
from tasks.wording import counted

# Until something was measured: about what the bundled model takes on a CPU, without and with
# following, and twice what SAM 2's base_plus takes for a crowded frame on a GPU.
ASSUMED_SECONDS_PER_FRAME, ASSUMED_WITH_FOLLOWING = 0.5, 10.0
ASSUMED_SECONDS_PER_FRAME_ON_GPU = 0.02


@dataclass(frozen=True)
class Rate:
    """Seconds of a worker's time that one frame takes.

    Attributes:
        seconds_per_frame: estimate, at least a microsecond.
        frames: frames it was measured on, 0 when it is assumed.
        where: what measured it, "" for this run.

    """

    seconds_per_frame: float
    frames: int
    where: str = ""

    @property
    def text(self) -> str:
        """What to tell a person."""
        how = "assumed: nothing is measured"
        if self.frames:
            how = f"measured on {counted(self.frames, 'frame')}"
        return f"{self.seconds_per_frame * 1e3:.0f} ms per frame, {how}{self.where}"


def rate_of(
    reports: Iterable[dict[str, Any]], *, on_gpu: bool = False, follows: bool = False
) -> Rate:
    """Return the rate that a run's reports of sequences tell, else an assumption.

    The stages of a run overlap, so a frame costs what the longest of them takes.
    """
    frames, total = 0, {DOWNLOAD: 0.0, DETECT: 0.0, SEGMENT: 0.0}
    for report in reports:
        frames += int(report.get("frames", 0))
        for stage in total:
            total[stage] += float(report.get("seconds", {}).get(stage, 0))
    if not frames:
        on_cpu = ASSUMED_WITH_FOLLOWING if follows else ASSUMED_SECONDS_PER_FRAME
        return Rate(ASSUMED_SECONDS_PER_FRAME_ON_GPU if on_gpu else on_cpu, 0)
    return Rate(max(max(total.values()) / frames, 1e-6), frames)


def remember_rate(stamp: RunStamp, outcomes: Iterable[SequenceOutcome], *, follows: bool) -> None:
    """Keep, for plans on this machine, how long a frame took in a run; none is no reason to fail.

    Args:
        stamp: what made the labels.
        outcomes: of the run's sequences.
        follows: whether objects were followed.

    """
    rate = rate_of(
        {"frames": outcome.computed_frames, "seconds": outcome.seconds}
        for outcome in outcomes
        if outcome.computed_frames
    )
    if rate.frames:
        path, told = _path_of(stamp, follows=follows), [rate.seconds_per_frame, rate.frames]
        with contextlib.suppress(OSError, storage.StorageError):
            make_folder(path.parent)
            storage.write_bytes(str(path), json.dumps(told).encode())


def last_rate(stamp: RunStamp, *, follows: bool) -> Rate | None:
    """Return how long a frame took in the last run of this kind on this machine, if one was."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        seconds_per_frame, frames = json.loads(_path_of(stamp, follows=follows).read_bytes())
        return Rate(max(float(seconds_per_frame), 1e-6), int(frames), " of the last run here")
    return None


def _path_of(stamp: RunStamp, *, follows: bool) -> Path:
    model = stamp.model
    kind = [model.name, model.backend, model.precision] if model else []
    kind += [stamp.detector.partition("@")[0], *(["follow"] if follows else [])]
    return cache_folder() / "rates" / f"{safe_name('-'.join(kind))}.json"
