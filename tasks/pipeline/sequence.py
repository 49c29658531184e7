"""A sequence on its way: opened into chunks, checked and closed, loaded."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sam2_core.types import AutolabelError
from tasks.frames.discover import Discovered, list_frames
from tasks.observe.progress import CHECK, DETECT, DOWNLOAD, SEGMENT
from tasks.pipeline.chunk import ChunkState, Job, count_kept, stored_chunk
from tasks.pipeline.outcome import (
    NotFetchedError,
    SequenceOutcome,
    SequencePart,
    UnreadableError,
    complete_before,
    outcome_so_far,
)
from tasks.store import artifacts, manifests, quarantine, storage
from tasks.store.artifacts import Chunk
from tasks.store.check import check
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import Manifest, withdrawn_if_damaged
from tasks.types import FrameFailure, FrameRef

if TYPE_CHECKING:
    from tasks.load.sequence import LoadReport


@dataclass(frozen=True)
class Opened:
    """A part of a sequence, cut into chunks.

    Attributes:
        part: which, with its frames listed, and with its manifest when it is complete by now.
        chunks: to label.
        rest: the sequence's other chunks, which other shards do.
        listed: paths of the tables that storage has of the sequence.
        failures: videos that could not be opened.
        attempt_uri: for `quarantine.end`; "" where attempts are not counted.

    """

    part: SequencePart
    chunks: tuple[Chunk, ...] = ()
    rest: tuple[Chunk, ...] = ()
    listed: frozenset[str] = frozenset()
    failures: tuple[FrameFailure, ...] = ()
    attempt_uri: str = ""


def open_part(job: Job, part: SequencePart) -> Opened:
    """List a sequence's frames if they are not listed, and cut this part of it into chunks.

    Videos are fetched and opened for that. A sequence that is complete by now has no chunks.

    Raises:
        NotFetchedError: it has videos only, and none was there to open.
        UnreadableError: it has videos only, and none can be opened.
        AutolabelError: it is gone, or has killed too many workers.

    """
    sequence = part.found.sequence
    if not part.found.frames:
        found = Discovered(sequence, tuple(list_frames(sequence, part.selection)))
        part = as_left(job.out_uri, job.stamp.run_key, replace(part, found=found))
        if part.manifest:
            count_kept(job, part.manifest.frames, DOWNLOAD, DETECT, SEGMENT)
            return Opened(part)
    frames, failures = _expanded(job, part.found)
    chunks = tuple(artifacts.chunks_of(frames, job.stamp.run_key, part.chunk_frames))
    first, stop = _range(part, chunks)
    mine, rest = chunks[first:stop], chunks[:first] + chunks[stop:]
    listed = _listed(job, mine)
    complete = sum(chunk.path("frames") in listed for chunk in mine)
    attempt_uri = _begin_attempt(job, part, complete, first) if job.counts_attempts else ""
    return Opened(part, mine, rest, listed, failures, attempt_uri)


def as_left(out_uri: str, run_key: str, part: SequencePart) -> SequencePart:
    """Return a part of a sequence that is complete with what completed it, else as it is.

    That is its manifest, and the frames that could not be labeled: who goes on after a worker that
    was killed tells of them, too.
    """
    try:
        manifest = manifests.read_manifest(out_uri, run_key, part.name, part.found.content_key)
        failures = tuple(_failures_of(out_uri, manifest))
    except (storage.NotFoundError, IncompleteArtifactError):
        return part
    return replace(part, manifest=manifest, failures=failures)


def _failures_of(out_uri: str, manifest: Manifest) -> Iterable[FrameFailure]:
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
        raise (NotFetchedError if absent else UnreadableError)(reasons)
    job.tools.progress.expect(len(frames) - sum(isinstance(one, FrameRef) for one in found.frames))
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
    key = (job.stamp.run_key, part.name, part.found.content_key)
    case = quarantine.Case(job.out_uri, *key)
    attempt_uri = quarantine.begin(case, complete, first)
    if attempt_uri is None:
        raise AutolabelError(
            f"given up: {quarantine.ATTEMPTS} workers died on this sequence without getting "
            "further; `autolabel backfill --retry-quarantined` tries it again"
        )
    return attempt_uri


def _listed(job: Job, chunks: tuple[Chunk, ...]) -> frozenset[str]:
    """Paths of the tables that are there, by one listing per camera; whole or not is seen later."""
    folders = {chunk.stem.rpartition("/")[0] for chunk in chunks}
    return frozenset(
        f"{folder}/{name}"
        for folder in folders
        for name in storage.list_names(storage.join(job.out_uri, folder))
    )


def check_sequence(job: Job, opened: Opened, states: Sequence[ChunkState]) -> SequenceOutcome:
    """Check a sequence's labels, write its report, and declare it complete.

    With frames that could not be fetched, or a camera's video that could not be opened, its
    manifest is a partial one: the next run tries those again. While chunks of other shards are
    missing it is not declared; two shards that end at the same moment both do, with equal bytes.
    """
    part, found = opened.part, opened.part.found
    if part.manifest:
        return complete_before(part)
    started = time.perf_counter()
    others = _of_others(job, opened.rest)
    together = sorted([*states, *(others or ())], key=lambda one: one.chunk.stem)
    outcome = outcome_so_far(part.name, together, opened.failures)
    if others is None:
        return outcome
    report = check(seen for one in together for seen in one.seen)
    partial = bool(opened.failures) or any(one.may_yet_come for one in outcome.failures)
    manifest = Manifest(
        part.name,
        found.sequence.frames_uri,
        found.content_key,
        job.stamp,
        tuple(one.record for one in together if one.record),
        partial,
    )
    seconds = outcome.seconds | {CHECK: time.perf_counter() - started}
    report |= {"seconds": {stage: round(value, 3) for stage, value in seconds.items()}}
    report |= {"certificate": _certificate(job)}
    manifests.write_report(
        job.out_uri, job.stamp.run_key, found.sequence, found.content_key, report
    )
    manifests.write_manifest(job.out_uri, manifest)
    hopeless = partial and not any(one.may_yet_come for one in outcome.failures)
    return replace(outcome, manifest=manifest, hopeless=hopeless, seconds=seconds)


def _certificate(job: Job) -> dict[str, Any] | None:
    """Return the certificate of the model where it is loaded: here or in the processes beside."""
    processes = job.tools.processes
    if processes is None:
        return job.tools.segmenters.certified_by(job.model)
    found: dict[str, Any] | None = processes.run(certificate_of)
    return found


def certificate_of(job: Job) -> dict[str, Any] | None:
    """Return the certificate of the job's model, which is loaded where it is not yet."""
    job.tools.segmenters.load(job.model)
    return job.tools.segmenters.certified_by(job.model)


def _of_others(job: Job, chunks: Iterable[Chunk]) -> list[ChunkState] | None:
    """Return the chunks that other shards do, or None while one is missing."""
    states = []
    for chunk in chunks:
        state = stored_chunk(job, chunk)
        if state is None:
            return None
        states.append(state)
    return states


def prepare_load(dataset: str, cameras: Sequence[str], out_uri: str) -> frozenset[str]:
    """Make a dataset ready for loads; returns the manifests that it holds already."""
    from tasks.dataset.record import loaded_manifests
    from tasks.load.prepare import prepare_dataset

    prepare_dataset(dataset, cameras, out_uri)
    return frozenset(loaded_manifests(dataset))


def load_labels(dataset: str, out_uri: str, manifest: Manifest) -> LoadReport:
    """Load a labeled sequence into FiftyOne; the frames that it has are brought here first.

    With frames that are left out, as their pictures have changed, it does not count as loaded: the
    next run loads it again.

    Raises:
        AutolabelError: storage or the database cannot be used, or labels are damaged.

    """
    from tasks.dataset.record import remember_load
    from tasks.load.sequence import load_sequence

    with withdrawn_if_damaged(out_uri, manifest):
        report = load_sequence(dataset, out_uri, manifest)
    remember_load(dataset, manifest, whole=not report.changed)
    return report
