"""The first step of a sequence: its frames listed, its videos opened, all of it cut into chunks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sam2_core.types import AutolabelError
from tasks.frames.discover import Discovered, list_frames
from tasks.observe.progress import DETECT, DOWNLOAD, SEGMENT
from tasks.pipeline.chunk import count_kept
from tasks.pipeline.outcome import (
    NotFetchedError,
    SequencePart,
    UnreadableError,
)
from tasks.pipeline.run_context import Job
from tasks.store import artifacts, manifests, quarantine, storage
from tasks.store.artifacts import Chunk
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import ListedManifest, Manifest, declare_again
from tasks.types import FrameFailure, FrameRef
from tasks.wording import counted

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opened:
    """A part of a sequence, cut into chunks.

    Attributes:
        part: which, with its frames listed, and with its manifest when it is complete by now.
        chunks: to label.
        rest: the sequence's other chunks, which other shards do.
        stored_paths: of the tables that storage has of the sequence.
        failures: videos that could not be opened.
        attempt_uri: for `quarantine.end`; "" where attempts are not counted.

    """

    part: SequencePart
    chunks: tuple[Chunk, ...] = ()
    rest: tuple[Chunk, ...] = ()
    stored_paths: frozenset[str] = frozenset()
    failures: tuple[FrameFailure, ...] = ()
    attempt_uri: str = ""

    @property
    def frames(self) -> int:
        """How many frames this part has, labeled by now or not."""
        complete = self.part.manifest
        return complete.frames if complete else sum(len(chunk.frames) for chunk in self.chunks)


def open_sequence(job: Job, part: SequencePart) -> Opened:
    """List a sequence's frames if they are not listed, and cut this part of it into chunks.

    Videos are fetched and opened for that. A sequence that is complete by now has no chunks.

    Raises:
        NotFetchedError: it has videos only, and none was there to open.
        UnreadableError: it has videos only, and none can be opened.
        AutolabelError: it is gone, or has killed too many workers.

    """
    job.context.check()
    found = part.found
    if not found.frames:
        found = replace(found, frames=tuple(list_frames(found.sequence, part.selection)))
    if job.boxes_uri and not found.boxes:
        found = replace(found, boxes=job.imported().digest_of(found.frames))
    if found is not part.found:
        part = as_left(job.out_uri, job.stamp.run_key, replace(part, found=found))
        if part.manifest:
            # Planned with other frames, perhaps, for which there may be labels, too.
            manifest = ListedManifest(0.0, job.stamp.run_key, part.name, part.found.content_key)
            declare_again(job.out_uri, [manifest])
            count_kept(job, part.manifest.frames, DOWNLOAD, DETECT, SEGMENT)
            return Opened(part)
    frames, failures = _expanded(job, found)
    key = replace(job.stamp, boxes=found.boxes).labels_key
    chunks = tuple(artifacts.chunks_of(frames, key, part.chunk_frames, found.boxes))
    first, stop = _range(part, chunks)
    mine, rest = chunks[first:stop], chunks[:first] + chunks[stop:]
    stored_paths = frozenset(  # one listing per camera; whether a table is whole is seen later
        f"{folder}/{name}"
        for folder in {chunk.stem.rpartition("/")[0] for chunk in mine}
        for name in storage.list_names(storage.join(job.out_uri, folder))
    )
    complete = sum(chunk.path("frames") in stored_paths for chunk in mine)
    attempt_uri = _begin_attempt(job, part, complete, first) if job.counts_attempts else ""
    opened = Opened(part, mine, rest, stored_paths, failures, attempt_uri)
    log.info("%s in %s", counted(opened.frames, "frame"), counted(len(mine), "chunk"))
    return opened


def as_left(out_uri: str, run_key: str, part: SequencePart) -> SequencePart:
    """Return a part of a sequence that is complete with what completed it, else as it is.

    That is its manifest, and the frames that could not be labeled: who goes on after a worker that
    was killed tells of them, too.
    """
    try:
        manifest = manifests.read_manifest(out_uri, run_key, part.name, part.found.content_key)
        failures = tuple(failures_of(out_uri, manifest))
    except (storage.NotFoundError, IncompleteArtifactError):
        return part
    return replace(part, manifest=manifest, failures=failures)


def failures_of(out_uri: str, manifest: Manifest) -> Iterator[FrameFailure]:
    """Read why frames of a complete sequence have no labels, of the chunks that have such."""
    for chunk in manifest.chunks:
        if chunk.failed:
            labeled = manifests.labels_of(out_uri, manifest, chunk)
            yield from (one.failure for one in labeled if one.failure)


def _expanded(job: Job, found: Discovered) -> tuple[list[FrameRef], tuple[FrameFailure, ...]]:
    """Open the videos: every frame, and what could not be opened."""
    from tasks.frames.video import expand_videos

    expanded = expand_videos(found.frames)
    frames = [one for one in expanded if isinstance(one, FrameRef)]
    failures = tuple(one for one in expanded if isinstance(one, FrameFailure))
    if not frames:
        absent = any(one.may_yet_come for one in failures)
        reasons = "; ".join(f"{one.uri}: {one.reason}" for one in failures)
        if not absent:
            raise UnreadableError(reasons)
        raise NotFetchedError(reasons, busy=any(one.busy for one in failures))
    job.context.progress.expect(
        len(frames) - sum(isinstance(one, FrameRef) for one in found.frames)
    )
    return frames, failures


def _range(part: SequencePart, chunks: tuple[Chunk, ...]) -> tuple[int, int]:
    """Which chunks are this part's.

    Plans count chunks from frames alone; every camera's last chunk is shorter, so with several
    cameras there are more, and those are the last part's.
    """
    if part.chunks is None:
        return 0, len(chunks)
    first, stop = part.chunks
    planned = math.ceil(sum(len(chunk.frames) for chunk in chunks) / part.chunk_frames)
    return first, len(chunks) if stop >= planned else stop


def _begin_attempt(job: Job, part: SequencePart, complete: int, first: int) -> str:
    case = quarantine.Case(job.out_uri, job.stamp.run_key, part.name, part.found.content_key)
    attempt_uri = quarantine.begin(case, complete, first)
    if attempt_uri is None:
        raise AutolabelError(
            f"given up: {quarantine.ATTEMPTS} workers died on this sequence without getting "
            "further; the same `autolabel backfill` with --retry-quarantined tries it again"
        )
    return attempt_uri
