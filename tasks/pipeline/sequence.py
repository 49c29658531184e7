"""The steps of a whole sequence: open before its chunks are labeled; check, track and load after.

Those of a chunk are in `tasks.pipeline.chunk`; their order is in `flows.pipeline`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sam2_core.types import AutolabelError
from tasks.frames.discover import Discovered, list_frames
from tasks.observe.progress import CHECK, DETECT, DOWNLOAD, LOAD, SEGMENT, TRACK
from tasks.pipeline.chunk import ChunkState, count_kept, stored_chunk
from tasks.pipeline.device_processes import portable
from tasks.pipeline.fill_gaps import Filled, fill_gaps
from tasks.pipeline.outcome import (
    NotFetchedError,
    SequenceOutcome,
    SequencePart,
    UnreadableError,
    complete_before,
    outcome_so_far,
    with_tracks,
)
from tasks.pipeline.run_context import Job, RunContext
from tasks.store import artifacts, manifests, quarantine, storage
from tasks.store.artifacts import Chunk
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import (
    Fresh,
    ListedManifest,
    Manifest,
    add_to_report,
    declare_again,
    report_of,
    withdrawn_if_damaged,
)
from tasks.store.tracks import FrameTracks, read_tracks, write_tracks
from tasks.tracks.linking import make_tracks
from tasks.types import FrameFailure, FrameRef
from tasks.wording import counted

if TYPE_CHECKING:
    from tasks.load.into_fiftyone import LoadReport

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


FAILURES_LOGGED = 20


def check_sequence(
    job: Job, opened: Opened, blocks: Sequence[Sequence[ChunkState]]
) -> SequenceOutcome:
    """Sum up a sequence's chunks, write its report, and declare it complete.

    With frames that could not be fetched, or a camera's video that could not be opened, its
    manifest is a partial one: the next run tries those again. While chunks of other shards are
    missing it is not declared; if two shards end together, both write the same manifest.
    """
    part, found = opened.part, opened.part.found
    if part.manifest:
        return complete_before(part)
    started = time.perf_counter()
    states = [state for block in blocks for state in block]
    others = _of_others(job, opened.rest)
    together = sorted([*states, *(others or ())], key=lambda one: one.chunk.stem)
    outcome = outcome_so_far(part.name, together, opened.failures)
    for one in outcome.failures[:FAILURES_LOGGED]:  # the report has all of them
        log.info("%s failed in %s: %s", one.uri.rpartition("/")[2], one.stage, one.reason)
    if len(outcome.failures) > FAILURES_LOGGED:
        log.info("%d more frames failed", len(outcome.failures) - FAILURES_LOGGED)
    frames = counted(outcome.frames, "frame")
    if others is None:
        log.info("%s, %s, the rest of it is done by other shards", frames, outcome.masks)
        return outcome
    log.info("%s, %s", frames, outcome.masks)
    report = report_of(seen for one in together for seen in one.seen)
    partial = bool(opened.failures) or any(one.may_yet_come for one in outcome.failures)
    versions = [one.versions for one in together]
    manifest = Manifest(
        part.name,
        found.sequence.frames_uri,
        found.content_key,
        replace(job.stamp, boxes=found.boxes),
        tuple(one.record for one in together if one.record),
        partial,
        tuple(one for i, one in enumerate(versions) if one not in versions[:i]),
    )
    seconds = outcome.seconds | {CHECK: time.perf_counter() - started}
    report |= {"seconds": {stage: round(value, 3) for stage, value in seconds.items()}}
    report |= {"certificate": _certificate(job), "versions": list(manifest.versions)}
    report |= {"mixed_versions": manifest.mixed}
    if not all(one.computed for one in together):
        manifests.note_mixed(job.out_uri, manifest)
    manifests.write_report(
        job.out_uri, job.stamp.run_key, found.sequence, found.content_key, report
    )
    manifests.write_manifest(job.out_uri, manifest)
    hopeless = partial and not any(one.may_yet_come for one in outcome.failures)
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
    if job.follow:
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

    While chunks of other shards are missing there is nothing to do: whoever declares the sequence
    complete makes them. Two that do so at the same moment write equal bytes.

    Raises:
        AutolabelError: storage cannot be used, or labels are damaged.

    """
    manifest = outcome.manifest
    if manifest is None or not job.tracks:
        return outcome
    done: SequenceOutcome
    if job.context.loader and job.dataset and not job.fill_gaps:  # the device's have enough to do
        done = job.context.loader.run(_track_for, portable(job), outcome)
        return done
    if job.context.processes:
        done = job.context.processes.run(track_sequence, outcome)
        return done
    started = time.perf_counter()
    stored = read_tracks(job.out_uri, manifest)
    if stored:
        facts = stored.made
    else:
        with withdrawn_if_damaged(job.out_uri, manifest):
            made = make_tracks(job.out_uri, manifest, job.fill_gaps, job.context.fresh)
        filled, why_not = fill_gaps(job, made.gaps)
        facts = made.made | _gaps(job, filled, made.no_gaps + why_not)
        more = [(one.frame, one.boxes, one.masks) for one in filled]
        write_tracks(job.out_uri, manifest, _with_filled(made.frames, filled), facts, more)
        if job.fill_gaps:
            add_to_report(job.out_uri, manifest, {"gaps": facts["gaps"]})
    seconds = outcome.seconds | {TRACK: time.perf_counter() - started}
    outcome = replace(with_tracks(outcome, facts), tracked_now=not stored, seconds=seconds)
    log.info("%s", counted(outcome.tracks, "track"))
    return outcome


def _track_for(values: dict[str, Any], outcome: SequenceOutcome) -> SequenceOutcome:
    return track_sequence(Job(**values, context=RunContext()), outcome)


def _gaps(job: Job, filled: Sequence[Filled], why_not: Counter[str]) -> dict[str, Any]:
    """Masks that were missing along tracks: how many were made, and why the others were not."""
    if not job.fill_gaps:
        return {}
    made = sum(len(one.gaps) for one in filled)
    return {"gaps": {"filled": made, "not_filled": dict(sorted(why_not.items()))}}


def _with_filled(
    frames: Iterable[tuple[FrameRef, FrameTracks]], filled: Sequence[Filled]
) -> Iterator[tuple[FrameRef, FrameTracks]]:
    """Put the tracks of filled gaps after those of each frame's own labels."""
    more = {(one.frame.camera, one.frame.index): one.gaps for one in filled}
    for frame, tracks in frames:
        gaps = more.get((frame.camera, frame.index), ())
        ids = np.array([gap.track_id for gap in gaps], np.int64)
        labels = (*tracks.labels, *(gap.label for gap in gaps))
        yield frame, FrameTracks(np.concatenate([tracks.ids, ids]), labels)


def prepare_dataset(job: Job, cameras: Sequence[str]) -> frozenset[str]:
    """As `prepare_load`, of a run's dataset; in the loader where there is one."""
    values = (job.dataset or "", tuple(cameras), job.out_uri)
    if job.context.loader is None:
        return prepare_load(*values)
    from tasks.dataset.database import ensure_database

    ensure_database()  # ours ends with this process, not with the loader
    held: frozenset[str] = job.context.loader.run(prepare_load, *values)
    return held


def prepare_load(dataset: str, cameras: Sequence[str], out_uri: str) -> frozenset[str]:
    """Make a dataset ready for loads; returns the manifests that it holds already."""
    from tasks.load.into_fiftyone import prepare_dataset

    return prepare_dataset(dataset, cameras, out_uri)


def load_sequence(job: Job, outcome: SequenceOutcome, loaded: frozenset[str]) -> SequenceOutcome:
    """Load a sequence's labels into FiftyOne, unless it is not complete or there already."""
    manifest, loader = outcome.manifest, job.context.loader
    if manifest is None or outcome.is_in(loaded):
        return outcome
    values = (job.dataset or "", job.out_uri, manifest)
    fresh = job.context.fresh
    report = loader.run(load_labels, *values) if loader else load_labels(*values, fresh)
    frames = counted(manifest.frames - manifest.failed, "frame")
    log.info("%s loaded into %s", frames, job.dataset)
    job.context.progress.advance(LOAD, manifest.frames)
    seconds = outcome.seconds | {LOAD: report.seconds}
    return replace(outcome, seconds=seconds, left_out=report.changed)


def load_labels(
    dataset: str, out_uri: str, manifest: Manifest, fresh: Fresh | None = None
) -> LoadReport:
    """Load a labeled sequence, as `tasks.load.into_fiftyone.load_sequence` says."""
    from tasks.load.into_fiftyone import load_sequence

    return load_sequence(dataset, out_uri, manifest, fresh)
