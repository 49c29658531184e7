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
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from flows.params import LabelParams, nanoseconds
from tasks.frames.discover import FoundSequence
from tasks.frames.identity import timestamp_ns
from tasks.store.manifests import Key
from tasks.types import VideoRef

# Of shorter ones half is start. Workers that would have nothing else to do start all at once.
SHORTEST_S = 20.0
# A start is 2% of these.
SHORTEST_LAST_S = 240.0
# A video's frames are not known before it is opened: dashcam H.264 has about this many bytes each.
VIDEO_BYTES_PER_FRAME = 20_000
_DATE_IN_NAME = re.compile(r"(?<!\d)((?:19|20)\d\d)[-_.]?(\d\d)[-_.]?(\d\d)(?!\d)")


Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class Piece:
    """A sequence that has to be labeled, or the part of it that one shard does.

    As small as planning a hundred thousand needs.

    Attributes:
        sequence_id: which.
        frames_uri: where its frames are.
        content_key: key of its frames.
        frames: how many; for a video an estimate from its size.
        chunks: (first, stop) of the sequence's chunks, None for all of them.
        splittable: whether a plan may cut it at chunk borders (a video's are not known yet).

    """

    sequence_id: Text
    frames_uri: Text
    content_key: str
    frames: Annotated[int, Field(ge=0)]
    chunks: tuple[int, int] | None = None
    splittable: Annotated[bool, Field(exclude=True)] = True

    @property
    def key(self) -> Key:
        """What tells it from other sequences, and from itself with other frames."""
        return self.sequence_id, self.content_key


class ShardParams(BaseModel):
    """Parameters of one shard: Prefect validates them at submission."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    label: LabelParams
    run_key: str = Field(description="Key of the run that planned it; another one is refused.")
    pieces: tuple[Piece, ...] = Field(min_length=1)
    cameras: tuple[str, ...] = Field(
        default=(), description="Every camera of the whole backfill: a dataset needs to know."
    )

    @property
    def frames(self) -> int:
        """Frames of all pieces."""
        return sum(piece.frames for piece in self.pieces)


def pack(
    works: Iterable[Piece], *, seconds_per_frame: float, lengths: Sequence[float], chunk_frames: int
) -> Iterator[tuple[Piece, ...]]:
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
    shard: list[Piece] = []
    filled = 0  # frames of all shards so far: what one has too much, the next has less
    target = budget
    for work in works:
        for piece in _cut(work, budget, chunk_frames):
            if shard and filled + piece.frames - target > target - filled:
                yield tuple(shard)
                budget = next(budgets)
                shard, target = [], max(target, filled) + budget
            shard.append(piece)
            filled += piece.frames
    if shard:
        yield tuple(shard)


def shard_lengths(total_seconds: float, shard_seconds: float, workers: int) -> list[float]:
    """Return how long shards should be so that `workers` that start together end together.

    All are equal but those of the last round, which are halved again and again: whoever is behind
    then has less left to do, and the others take what it would have done.

    Args:
        total_seconds: of all the work, on one worker.
        shard_seconds: about so long.
        workers: that are online; 0 when nobody knows.

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


def _cut(work: Piece, budget_frames: float, chunk_frames: int) -> Iterator[Piece]:
    chunks = math.ceil(work.frames / chunk_frames)
    parts = min(round(work.frames / budget_frames), chunks)
    if not work.splittable or parts < 2:
        yield work
        return
    edges = [round(part * chunks / parts) for part in range(parts + 1)]
    for first, stop in itertools.pairwise(edges):
        frames = min(stop * chunk_frames, work.frames) - first * chunk_frames
        yield replace(work, chunks=(first, stop), frames=frames)


def taken_ns(one: FoundSequence) -> int | None:
    """When a sequence began: its first frame's timestamp, else a date in its name, else None."""
    times = [frame.timestamp_ns for frame in one.frames if frame.timestamp_ns is not None]
    if times:
        return min(times)
    name = one.sequence_id
    exact = timestamp_ns(name)
    if exact is not None:
        return exact
    for year, month, day in _DATE_IN_NAME.findall(name):
        try:
            return nanoseconds(datetime(int(year), int(month), int(day), tzinfo=UTC))
        except ValueError:
            continue
    return None


def piece_of(found: FoundSequence) -> Piece:
    """Shrink a discovered sequence to what a plan remembers of it."""
    videos = [frame for frame in found.frames if isinstance(frame, VideoRef)]
    frames = len(found.frames) - len(videos)
    for video in videos:  # a guess from its size, at least one
        about, chosen = range(video.size_bytes // VIDEO_BYTES_PER_FRAME), video.selection
        frames += max(len(about[chosen.start : chosen.stop : chosen.step]), 1)
    return Piece(
        found.sequence_id, found.frames_uri, found.content_key, frames,
        splittable=not videos,
    )  # fmt: skip
