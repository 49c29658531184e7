"""Work cut into shards of about equal time: plain data and arithmetic, no storage, no server.

A shard is what one flow run on a GPU worker does. It is sized by estimated seconds, not by count,
because a sequence may have 10 frames or 10,000; one that is longer than a shard is cut at chunk
borders, so that several workers share it.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from flows.params import LabelParams, nanoseconds
from tasks.frames.discover import FoundSequence
from tasks.frames.identity import timestamp_ns
from tasks.types import VideoRef

# Of shorter ones half is start. Workers that would have nothing else to do start all at once.
SHORTEST_S = 20.0
# A start is 2% of these.
SHORTEST_LAST_S = 240.0
# A video's frames are not known before it is opened: dashcam H.264 has about this many bytes each.
VIDEO_BYTES_PER_FRAME = 20_000
_DATE_IN_NAME = re.compile(r"(?<!\d)((?:19|20)\d\d)[-_.]?(\d\d)[-_.]?(\d\d)(?!\d)")
# Of a sequence, what a plan remembers and a shard is given.
PLANNED = ("sequence_id", "frames_uri", "planned_key", "planned", "chunks")


class ShardParams(BaseModel):
    """Parameters of one shard: Prefect validates them at submission."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    label: LabelParams
    run_key: str = Field(description="Key of the run that planned it; another one is refused.")
    pieces: tuple[FoundSequence, ...] = Field(
        min_length=1, description="Sequences to label, or the parts of them that this shard does."
    )
    cameras: tuple[str, ...] = Field(
        default=(), description="Every camera of the whole backfill: a dataset needs to know."
    )

    @field_serializer("pieces")
    def _planned(self, pieces: tuple[FoundSequence, ...]) -> list[dict[str, Any]]:
        return [{name: getattr(piece, name) for name in PLANNED} for piece in pieces]

    @property
    def frames(self) -> int:
        """Frames of all pieces."""
        return sum(piece.planned for piece in self.pieces)


def pack(
    works: Iterable[FoundSequence],
    *,
    seconds_per_frame: float,
    lengths: Sequence[float],
    chunk_frames: int,
) -> Iterator[tuple[FoundSequence, ...]]:
    """Pack sequences, in order, into shards of about these lengths.

    A shard is closed when the next piece would exceed the time of all shards so far by more than
    leaving it out would fall short of it.

    Args:
        works: sequences to label.
        seconds_per_frame: estimated time of one frame, boxes and all.
        lengths: seconds that each shard should take, the last of them also those after it.
        chunk_frames: frames of a chunk; longer sequences are cut at multiples of it.

    """
    all_lengths = itertools.chain(lengths, itertools.repeat(lengths[-1]))
    budgets = (max(length / seconds_per_frame, 1.0) for length in all_lengths)
    budget = next(budgets)
    shard: list[FoundSequence] = []
    filled = 0  # frames of all shards so far: what one has too much, the next has less
    target = budget
    for work in works:
        for piece in _cut(work, budget, chunk_frames):
            if shard and filled + piece.planned - target > target - filled:
                yield tuple(shard)
                budget = next(budgets)
                shard, target = [], max(target, filled) + budget
            shard.append(piece)
            filled += piece.planned
    if shard:
        yield tuple(shard)


def shard_lengths(total_seconds: float, shard_seconds: float, workers: int) -> list[float]:
    """Return how long shards should be so that `workers` that start together end together.

    All are equal but those of the last round, which are halved again and again: a worker that is
    behind then has less left to do, and the others take what it would have done.

    Args:
        total_seconds: of all the work, on one worker.
        shard_seconds: about so long.
        workers: that are online; 0 when unknown.

    """
    workers = max(workers, 1)
    count = max(round(total_seconds / shard_seconds), 1)
    even = math.ceil(count / workers) * workers
    if total_seconds / even >= min(SHORTEST_S, shard_seconds):
        count = even
    length = max(total_seconds / count, 1e-6)
    lengths, last = [length] * max(count - workers, 0), length
    while last / 2 >= SHORTEST_LAST_S and count >= workers:
        last /= 2
        lengths += [last] * workers
    return [*lengths, *[last] * workers]


def _cut(work: FoundSequence, budget_frames: float, chunk_frames: int) -> Iterator[FoundSequence]:
    chunks = math.ceil(work.planned / chunk_frames)
    parts = min(round(work.planned / budget_frames), chunks)
    if work.is_estimated or parts < 2:
        yield work
        return
    edges = [round(part * chunks / parts) for part in range(parts + 1)]
    for first, stop in itertools.pairwise(edges):
        frames = min(stop * chunk_frames, work.planned) - first * chunk_frames
        yield replace(work, chunks=(first, stop), planned=frames)


def taken_ns(sequence: FoundSequence) -> int | None:
    """When a sequence began: its first frame's timestamp, else a date in its name, else None."""
    times = [frame.timestamp_ns for frame in sequence.frames if frame.timestamp_ns is not None]
    if times:
        return min(times)
    name = sequence.sequence_id
    exact = timestamp_ns(name)
    if exact is not None:
        return exact
    for year, month, day in _DATE_IN_NAME.findall(name):
        try:
            return nanoseconds(datetime(int(year), int(month), int(day), tzinfo=UTC))
        except ValueError:
            continue
    return None


def as_planned(found: FoundSequence) -> FoundSequence:
    """Return what a plan remembers of a sequence: as little as a hundred thousand need."""
    videos = [frame for frame in found.frames if isinstance(frame, VideoRef)]
    frames = len(found.frames) - len(videos)
    for video in videos:  # a guess from its size, at least one
        about, chosen = range(video.size_bytes // VIDEO_BYTES_PER_FRAME), video.selection
        frames += max(len(about[chosen.start : chosen.stop : chosen.step]), 1)
    return FoundSequence(
        found.sequence_id, found.frames_uri, found.content_key, frames, bool(videos)
    )
