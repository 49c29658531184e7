"""The steps of a whole sequence: open before its chunks are labeled; check, track and load after.

Those of a chunk are in `tasks.pipeline.chunk`; their order is in `flows.pipeline`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sam2_core.types import AutolabelError
from tasks.dataset.database import ensure_database
from tasks.dataset.lazy_imports import import_around_fiftyone
from tasks.frames.discover import FoundSequence, list_frames
from tasks.frames.sources import remember_frames
from tasks.observe.progress import CHECK, DETECT, DOWNLOAD, LOAD, SEGMENT, TRACK
from tasks.pipeline.chunk import ChunkState, count_kept, stored_chunk
from tasks.pipeline.fill_gaps import Filled, fill_gaps
from tasks.pipeline.outcome import (
    NotFetchedError,
    SequenceOutcome,
    UnreadableError,
    complete_before,
    outcome_so_far,
    with_tracks,
)
from tasks.pipeline.run_context import Job
from tasks.store import artifacts, manifests, quarantine, storage
from tasks.store.artifacts import Chunk
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import (
    ListedManifest,
    Manifest,
    Tally,
    add_to_report,
    declare_again,
    report_of,
    withdrawn_if_damaged,
)
from tasks.store.tables import Kind
from tasks.store.tracks import FrameTracks, read_tracks, write_tracks
from tasks.tracks.linking import make_tracks
from tasks.types import FrameFailure, FrameRef
from tasks.wording import counted

if TYPE_CHECKING:
    from tasks.load.into_fiftyone import LoadReport

log = logging.getLogger(__name__)


def open_sequence(job: Job, part: FoundSequence) -> FoundSequence:
    """List a sequence's frames if they are not listed, and cut this part of it into chunks.

    Videos are fetched and opened for that. A sequence that is complete by now has no chunks.

    Raises:
        NotFetchedError: it has videos only, and none was there to open.
        UnreadableError: it has videos only, and none can be opened.
        AutolabelError: it is gone, or has killed too many workers.

    """
    job.context.check()
    planned, size, expect = part, job.params.chunk_frames, job.context.progress.expect
    if not part.frames:
        part = replace(part, frames=list_frames(part, job.params.selection))
        remember_frames(part.frames)
    if job.params.boxes and not part.boxes:
        part = replace(part, boxes=job.imported().digest_of(part.frames))
    if part is not planned:
        part = as_left(job.params.out, job.stamp.run_key, part)
        if part.manifest:
            # Planned with other frames, perhaps, for which there may be labels, too.
            manifest = ListedManifest(0.0, job.stamp.run_key, *part.key)
            declare_again(job.params.out, [manifest])
            expect((part.sequence_id, part.chunks), part.manifest.frames - part.planned)
            count_kept(job, part.manifest.frames, DOWNLOAD, DETECT, SEGMENT)
            return part
    frames, failures = _expanded(part)
    key = replace(job.stamp, boxes=part.boxes).labels_key
    chunks = tuple(artifacts.chunks_of(frames, key, size, part.boxes))
    first, stop = part.chunks or (0, len(chunks))
    # Plans count chunks from frames alone; every camera's last chunk is shorter, so with several
    # cameras there are more, and those are the last part's.
    if stop >= math.ceil(len(frames) / size):
        stop = len(chunks)
    rest = chunks[:first] + chunks[stop:]
    work = tuple(_with_tables(job.params.out, chunks[first:stop]))
    complete = sum("frames" in chunk.tables for chunk in work)
    attempt_uri: str | None = ""
    if job.counts_attempts:
        case = quarantine.Case(job.params.out, job.stamp.run_key, *part.key)
        attempt_uri = quarantine.begin(case, complete, first)
    if attempt_uri is None:
        raise AutolabelError(
            f"given up: {quarantine.ATTEMPTS} workers died on this sequence without getting "
            "further; the same `autolabel backfill` with --retry-quarantined tries it again"
        )
    frames_here = sum(len(chunk.frames) for chunk in work)
    expect((part.sequence_id, part.chunks), frames_here - part.planned)
    in_chunks = counted(len(work), "chunk")
    log.info("%s: %s in %s", part.sequence_id, counted(frames_here, "frame"), in_chunks)
    return replace(part, work=work, rest=rest, failures=failures, attempt_uri=attempt_uri)


def _with_tables(out_uri: str, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Yield chunks with what storage has of them: one listing per camera."""
    there = {
        f"{folder}/{name}"
        for folder in {chunk.stem.rpartition("/")[0] for chunk in chunks}
        for name in storage.list_names(storage.join(out_uri, folder))
    }
    kinds: tuple[Kind, ...] = ("boxes", "frames")
    for chunk in chunks:
        tables = frozenset(kind for kind in kinds if chunk.path(kind) in there)
        yield replace(chunk, tables=tables)


def as_left(out_uri: str, run_key: str, part: FoundSequence) -> FoundSequence:
    """Return a part of a sequence that is complete with what completed it, else as it is.

    That is its manifest, and the frames that could not be labeled: who goes on after a worker that
    was killed tells of them, too.
    """
    try:
        manifest = manifests.read_manifest(out_uri, run_key, *part.key)
        failures = tuple(failures_of(out_uri, manifest))
    except (storage.NotFoundError, IncompleteArtifactError):
        return part
    return replace(part, manifest=manifest, failures=failures)


def failures_of(out_uri: str, manifest: Manifest) -> Iterator[FrameFailure]:
    """Read why frames of a complete sequence have no labels, of the chunks that have such."""
    for chunk in manifest.chunks:
        if chunk.failed:
            labeled = manifests.labels_of(out_uri, manifest, chunk)
            yield from (frame.failure for frame in labeled if frame.failure)


def _expanded(found: FoundSequence) -> tuple[list[FrameRef], tuple[FrameFailure, ...]]:
    """Open the videos: every frame, and what could not be opened."""
    from tasks.frames.video import expand_videos

    expanded = expand_videos(found.frames)
    frames = [found for found in expanded if isinstance(found, FrameRef)]
    failures = tuple(found for found in expanded if isinstance(found, FrameFailure))
    if not frames:
        absent = any(failure.may_yet_come for failure in failures)
        reasons = "; ".join(f"{failure.uri}: {failure.reason}" for failure in failures)
        if not absent:
            raise UnreadableError(reasons)
        raise NotFetchedError(reasons, busy=any(failure.busy for failure in failures))
    return frames, failures


FAILURES_LOGGED = 20


def check_sequence(
    job: Job, part: FoundSequence, blocks: Sequence[Sequence[ChunkState]]
) -> SequenceOutcome:
    """Sum up a sequence's chunks, write its report, and declare it complete.

    With frames that could not be fetched, or a camera's video that could not be opened, its
    manifest is a partial one: the next run tries those again. While chunks of other shards are
    missing it is not declared; if two shards end together, both write the same manifest.
    """
    if part.manifest:
        return complete_before(part)
    started = time.perf_counter()
    states = [state for block in blocks for state in block]
    others = _of_others(job, part.rest)
    together = sorted([*states, *(others or ())], key=lambda state: state.chunk.stem)
    outcome = outcome_so_far(part.sequence_id, together, part.failures)
    for failure in outcome.failures[:FAILURES_LOGGED]:  # the report has all of them
        name = failure.uri.rpartition("/")[2]
        log.info("%s: %s failed in %s: %s", part.sequence_id, name, failure.stage, failure.reason)
    if len(outcome.failures) > FAILURES_LOGGED:
        more = len(outcome.failures) - FAILURES_LOGGED
        log.info("%s: %d more frames failed", part.sequence_id, more)
    frames = counted(outcome.frames, "frame")
    if others is None:
        told = "%s: %s, %s, the rest of it is done by other shards"
        log.info(told, part.sequence_id, frames, outcome.masks)
        return outcome
    log.info("%s: %s, %s", part.sequence_id, frames, outcome.masks)
    partial = bool(part.failures) or any(failure.may_yet_come for failure in outcome.failures)
    versions = [state.versions for state in together]
    manifest = Manifest(
        part.sequence_id,
        part.frames_uri,
        part.content_key,
        replace(job.stamp, boxes=part.boxes),
        tuple(state.record for state in together if state.record),
        partial,
        tuple(version for i, version in enumerate(versions) if version not in versions[:i]),
    )
    tally = sum((state.tally for state in together), Tally())
    seconds = outcome.seconds | {CHECK: time.perf_counter() - started}
    report = report_of(manifest, tally, outcome.failures) | {
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "certificate": _certificate(job),
        "versions": list(manifest.versions),
        "mixed_versions": manifest.mixed,
    }
    if not all(state.computed for state in together):
        manifests.note_mixed(job.params.out, manifest)
    manifests.write_report(job.params.out, manifest, report)
    manifests.write_manifest(job.params.out, manifest)
    hopeless = partial and not any(failure.may_yet_come for failure in outcome.failures)
    return replace(outcome, manifest=manifest, hopeless=hopeless, seconds=seconds)


def _certificate(job: Job) -> dict[str, Any] | None:
    """Return the certificate of the model where it is loaded: here or in the processes beside."""
    processes = job.context.processes
    if processes is None:
        return job.context.segmenters.certified_by(job.model)
    if job.context.certificate is None:
        job.context.certificate = processes.run(certificate_of)
    return job.context.certificate


def certificate_of(job: Job) -> dict[str, Any] | None:
    """Return the certificate of the job's model, which is loaded where it is not yet."""
    job.context.segmenters.load(job.model)
    if job.params.follow:
        job.context.segmenters.follow_backend(job.model)
    return job.context.segmenters.certified_by(job.model)


def _of_others(job: Job, chunks: Iterable[Chunk]) -> list[ChunkState] | None:
    """Return the chunks that other shards do, or None while one is missing."""
    states = []
    for chunk in chunks:
        state = stored_chunk(job, chunk)
        if state is None:
            return None
        states.append(state)
    return states


def track_sequence(job: Job, outcome: SequenceOutcome) -> SequenceOutcome:
    """Make the tracks of a complete sequence, unless they are there; fill gaps if asked to.

    While chunks of other shards are missing there is nothing to do: the shard that declares the
    sequence complete makes them. Two that do so at the same moment write equal bytes.

    Raises:
        AutolabelError: storage cannot be used, or labels are damaged.

    """
    manifest = outcome.manifest
    if manifest is None or not job.params.tracks:
        return outcome
    context, params = job.context, job.params
    # The device's processes have enough to do.
    by_loader = context.loader and params.dataset_name and not params.fill_gaps
    if beside := context.loader if by_loader else context.processes:
        return beside.run(track_sequence, outcome)
    started = time.perf_counter()
    stored = read_tracks(params.out, manifest)
    if stored:
        facts = stored.made
    else:
        with withdrawn_if_damaged(params.out, manifest):
            made = make_tracks(params.out, manifest, params.fill_gaps, context.fresh)
        filled, why_not = fill_gaps(job, made.gaps)
        facts = made.made
        if params.fill_gaps:
            not_filled = dict(sorted((made.no_gaps + why_not).items()))
            facts = facts | {
                "gaps": {
                    "filled": sum(len(frame.gaps) for frame in filled),
                    "not_filled": not_filled,
                }
            }
        more = [(frame.frame, frame.boxes, frame.masks) for frame in filled]
        write_tracks(params.out, manifest, _with_filled(made.frames, filled), facts, more)
        if params.fill_gaps:
            add_to_report(params.out, manifest, {"gaps": facts["gaps"]})
    seconds = outcome.seconds | {TRACK: time.perf_counter() - started}
    outcome = replace(with_tracks(outcome, facts), tracked_now=not stored, seconds=seconds)
    log.info("%s: %s", outcome.sequence_id, counted(outcome.tracks, "track"))
    return outcome


def _with_filled(
    frames: Iterable[tuple[FrameRef, FrameTracks]], filled: Sequence[Filled]
) -> Iterator[tuple[FrameRef, FrameTracks]]:
    """Put the tracks of filled gaps after those of each frame's own labels."""
    more = {(frame.frame.camera, frame.frame.index): frame.gaps for frame in filled}
    for frame, tracks in frames:
        gaps = more.get((frame.camera, frame.index), ())
        ids = np.array([gap.track_id for gap in gaps], np.int64)
        labels = (*tracks.labels, *(gap.label for gap in gaps))
        yield frame, FrameTracks(np.concatenate([tracks.ids, ids]), labels)


def make_dataset_ready(job: Job, cameras: Sequence[str]) -> frozenset[str]:
    """Make the run's dataset ready for loads, in the loader where there is one.

    Returns the manifests that it holds already.
    """
    if loader := job.context.loader:
        ensure_database()  # ours ends with this process, not with the loader
        return loader.run(make_dataset_ready, cameras)
    import_around_fiftyone()  # while its database starts
    from tasks.load import into_fiftyone

    name = job.params.dataset_name or ""
    return into_fiftyone.prepare_dataset(name, tuple(cameras), job.params.out)


def load_into_dataset(
    job: Job, outcome: SequenceOutcome, loaded: frozenset[str]
) -> SequenceOutcome:
    """Load a sequence's labels into FiftyOne, unless it is not complete or there already."""
    manifest, loader = outcome.manifest, job.context.loader
    if manifest is None or outcome.is_in(loaded):
        return outcome
    report = loader.run(load_labels, manifest) if loader else load_labels(job, manifest)
    frames = counted(manifest.frames - manifest.failed, "frame")
    log.info("%s: %s loaded into %s", outcome.sequence_id, frames, job.params.dataset_name)
    job.context.progress.advance(LOAD, manifest.frames)
    seconds = outcome.seconds | {LOAD: report.seconds}
    return replace(outcome, seconds=seconds, left_out=report.changed)


def load_labels(job: Job, manifest: Manifest) -> LoadReport:
    """Load a labeled sequence, as `tasks.load.into_fiftyone.load_sequence` says."""
    from tasks.load import into_fiftyone

    name, fresh = job.params.dataset_name or "", job.context.fresh
    return into_fiftyone.load_sequence(name, job.params.out, manifest, fresh)
