"""A sequence: opened into chunks, labeled, closed with report and manifest, loaded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prefect import task
from prefect.cache_policies import NO_CACHE

from sam2_core.types import AutolabelError
from tasks.errors import redacted_errors, told
from tasks.frames.discover import Discovered
from tasks.observe.progress import CHECK, DOWNLOAD, LOAD, advance, expect, summed
from tasks.pipeline.chunk import ChunksFailedError, Job, Labeled, label_chunks
from tasks.store import artifacts, manifests
from tasks.store.artifacts import Chunk
from tasks.store.manifests import ChunkRecord, Manifest, withdrawn_if_damaged
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef


class UnreadableError(AutolabelError):
    """Nothing of a sequence can be decoded: trying again is of no use."""


class NotFetchedError(AutolabelError):
    """Nothing of a sequence could be fetched: a later try may."""


@dataclass(frozen=True)
class Closed:
    """A labeled sequence.

    Attributes:
        manifest: what it consists of; a partial one where something could not be fetched or opened.
        failures: frames without labels.
        computed_frames: frames that this run labeled; the others were there before.
        seconds: by stage.

    """

    manifest: Manifest
    failures: tuple[FrameFailure, ...]
    computed_frames: int
    seconds: dict[str, float]

    @property
    def hopeless(self) -> bool:
        """Whether it is partial, and trying again is of no use."""
        return self.manifest.partial and not any(map(may_yet_come, self.failures))


def may_yet_come(failure: FrameFailure) -> bool:
    """Whether what failed could not be fetched; what was fetched and is bad stays so."""
    return failure.stage == DOWNLOAD


@dataclass(frozen=True)
class Opened:
    """A sequence cut into chunks; `failures` are videos that could not be opened."""

    found: Discovered
    chunks: tuple[Chunk, ...]
    failures: tuple[FrameFailure, ...]


@dataclass(frozen=True)
class LabeledSequence:
    """What became of a sequence, or of the part of it that was to be labeled.

    Attributes:
        labeled: its chunks.
        closed: None where other chunks are still missing, which others do.
        unopened: videos that could not be opened.

    """

    labeled: tuple[Labeled, ...]
    closed: Closed | None
    unopened: tuple[FrameFailure, ...] = ()


class SequenceError(AutolabelError):
    """A sequence that could not be labeled.

    Attributes:
        stage: where it failed: open, label or check.
        cause: why.
        labeled: chunks that are labeled all the same.

    """

    def __init__(self, stage: str, cause: Exception, labeled: Sequence[Labeled] = ()) -> None:
        super().__init__(told(cause))
        self.stage, self.cause, self.labeled = stage, cause, tuple(labeled)


@contextlib.contextmanager
def stage(name: str, labeled: Sequence[Labeled] = ()) -> Iterator[None]:
    """Say in which stage of a sequence the block fails."""
    try:
        yield
    except ChunksFailedError as error:
        raise SequenceError(name, error.cause, error.labeled) from error.cause
    except Exception as error:
        raise SequenceError(name, error, labeled) from error


def open_sequence(job: Job, found: Discovered, chunk_frames: int) -> Opened:
    """Cut a sequence into chunks; its videos are fetched and opened for that.

    Raises:
        NotFetchedError: it has videos only, and none was there to open.
        UnreadableError: it has videos only, and none can be opened.

    """
    from tasks.frames.video import expand_videos

    expanded = expand_videos(found.frames)
    frames = [one for one in expanded if isinstance(one, FrameRef)]
    failures = tuple(one for one in expanded if isinstance(one, FrameFailure))
    if not frames:
        error = NotFetchedError if any(map(may_yet_come, failures)) else UnreadableError
        raise error("; ".join(f"{one.uri}: {one.reason}" for one in failures))
    expect(len(frames) - sum(isinstance(frame, FrameRef) for frame in found.frames))
    chunks = artifacts.chunks_of(frames, job.stamp.run_key, chunk_frames)
    return Opened(found, tuple(chunks), failures)


def close_sequence(job: Job, opened: Opened, labeled: Sequence[Labeled]) -> Closed:
    """Check a sequence's labels, write its report, and declare it complete.

    With frames that could not be fetched, or a camera's video that could not be opened, its
    manifest is a partial one: the next run tries those again.
    """
    from tasks.store.check import check

    started = time.perf_counter()
    records: list[ChunkRecord] = []
    report = check(_stored(job, labeled, records))
    found, sequence = opened.found, opened.found.sequence
    failures = (*opened.failures, *(failure for one in labeled for failure in one.failures))
    partial = bool(opened.failures) or any(map(may_yet_come, failures))
    manifest = Manifest(
        sequence.sequence_id,
        sequence.frames_uri,
        found.content_key,
        job.stamp,
        tuple(records),
        partial,
    )
    seconds = summed(one.seconds for one in labeled)
    seconds[CHECK] = time.perf_counter() - started
    report |= {"seconds": {stage: round(value, 3) for stage, value in seconds.items()}}
    manifests.write_report(job.out_uri, job.stamp.run_key, sequence, found.content_key, report)
    manifests.write_manifest(job.out_uri, manifest)
    return Closed(manifest, failures, computed_frames(labeled), seconds)


def _stored(
    job: Job, labeled: Iterable[Labeled], records: list[ChunkRecord]
) -> Iterator[LabeledFrame]:
    """Yield a sequence's outcomes as they lie in storage; adds to `records` which files these are.

    The manifest names them by their checksums.
    """
    for one in labeled:
        stored = artifacts.read_chunk(job.out_uri, one.record.stem, one.record.key)
        records.append(one.record.with_checksums(stored))
        yield from stored.labeled


def computed_frames(labeled: Iterable[Labeled]) -> int:
    """Count the frames that were given labels by this run."""
    return sum(one.record.frames - one.record.failed for one in labeled if one.computed)


def label_sequence(job: Job, found: Discovered, chunk_frames: int) -> LabeledSequence:
    """Open a sequence, label its chunks, check and close it.

    Raises:
        SequenceError: something but single frames failed.

    """
    with stage("open"):
        opened = open_sequence(job, found, chunk_frames)
    with stage("label"):
        labeled = label_chunks(job, opened.chunks)
    with stage(CHECK, labeled):
        closed = close_sequence(job, opened, labeled)
    return LabeledSequence(tuple(labeled), closed, opened.failures)


def load_labels(
    job: Job, dataset: str, manifest: Manifest, frames: Sequence[FrameRef]
) -> dict[str, float]:
    """Load a complete sequence into FiftyOne; returns seconds."""
    from tasks.dataset.record import remember_loaded
    from tasks.load.sequence import load_sequence

    started = time.perf_counter()
    with withdrawn_if_damaged(job.out_uri, manifest):
        load_sequence(dataset, job.out_uri, manifest, frames)
    remember_loaded(dataset, manifest)
    advance(LOAD, manifest.frames)
    return {LOAD: time.perf_counter() - started}


def local_frames(found: Discovered) -> list[FrameRef]:
    """Return the frames of a sequence with `local_path`; what is cached costs a stat."""
    from tasks.frames.download import download
    from tasks.frames.video import expand_videos

    expanded = [one for one in expand_videos(found.frames) if isinstance(one, FrameRef)]
    return [one for one in download(expanded) if isinstance(one, FrameRef)]


def load_stored(dataset: str, out_uri: str, manifest: Manifest) -> dict[str, float]:
    """Load a complete sequence that others may have labeled, and bring the frames that they had.

    Returns seconds.

    Raises:
        AutolabelError: storage or the database cannot be used.

    """
    from tasks.dataset.record import remember_loaded
    from tasks.load.sequence import load_sequence

    started = time.perf_counter()
    with withdrawn_if_damaged(out_uri, manifest):
        load_sequence(dataset, out_uri, manifest, fetch=True)
    remember_loaded(dataset, manifest)
    return {LOAD: time.perf_counter() - started}


@task(name="label", task_run_name="label-{name}", cache_policy=NO_CACHE, persist_result=False)
def label_task(job: Job, found: Discovered, chunk_frames: int, name: str) -> LabeledSequence:
    """Label one sequence."""
    with redacted_errors():
        return label_sequence(job, found, chunk_frames)


@task(name="fetch", task_run_name="fetch-{name}", cache_policy=NO_CACHE, persist_result=False)
def local_frames_task(found: Discovered, name: str) -> list[FrameRef]:
    """Bring the images of a sequence that was labeled before to this machine."""
    with redacted_errors():
        return local_frames(found)


@task(name="prepare", cache_policy=NO_CACHE, persist_result=False)
def prepare_task(dataset: str, cameras: list[str], out_uri: str) -> set[str]:
    """Make the dataset ready for loads; returns the manifests that it holds already."""
    from tasks.dataset.record import loaded_manifests
    from tasks.load.prepare import prepare_dataset

    with redacted_errors():
        prepare_dataset(dataset, cameras, out_uri)
        return loaded_manifests(dataset)


@task(name="load", task_run_name="load-{name}", cache_policy=NO_CACHE, persist_result=False)
def load_task(
    job: Job, dataset: str, manifest: Manifest, frames: list[FrameRef], name: str
) -> dict[str, float]:
    """Load one sequence into FiftyOne."""
    with redacted_errors():
        return load_labels(job, dataset, manifest, frames)
