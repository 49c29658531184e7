"""What a plan remembers of a sequence that was found: when it was taken, and how much work."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from flows.backfill_params import nanoseconds
from flows.plan.shards import Piece
from tasks.frames.discover import Discovered
from tasks.frames.source_names import timestamp_ns
from tasks.types import VideoRef

# A video's frames are not known before it is opened: dashcam H.264 has about this many bytes each.
VIDEO_BYTES_PER_FRAME = 20_000
_DATE_IN_NAME = re.compile(r"(?<!\d)((?:19|20)\d\d)[-_.]?(\d\d)[-_.]?(\d\d)(?!\d)")


def taken_ns(one: Discovered) -> int | None:
    """When a sequence began: its first frame's timestamp, else a date in its name, else None."""
    times = [frame.timestamp_ns for frame in one.frames if frame.timestamp_ns is not None]
    if times:
        return min(times)
    name = one.sequence.sequence_id
    exact = timestamp_ns(name)
    if exact is not None:
        return exact
    for year, month, day in _DATE_IN_NAME.findall(name):
        try:
            return nanoseconds(datetime(int(year), int(month), int(day), tzinfo=UTC))
        except ValueError:
            continue
    return None


def work_of(one: Discovered, content_key: str) -> Piece:
    """Shrink a discovered sequence to what a plan remembers of it."""
    videos = [frame for frame in one.frames if isinstance(frame, VideoRef)]
    frames = len(one.frames) - len(videos)
    frames += sum(map(_frames_about, videos))
    sequence = one.sequence
    return Piece(
        sequence.sequence_id, sequence.frames_uri, content_key, frames,
        picked=one.picked, splittable=not videos,
    )  # fmt: skip


def _frames_about(video: VideoRef) -> int:
    """Guess how many frames of a video are asked for, from its size; at least one."""
    frames, chosen = video.size_bytes // VIDEO_BYTES_PER_FRAME, video.selection
    return max(len(range(frames)[chosen.start : chosen.stop : chosen.step]), 1)
