"""One piece of a shard: a sequence, or a range of its chunks, that others may be working on too."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prefect import task
from prefect.cache_policies import NO_CACHE

from sam2_core.types import AutolabelError
from tasks.frames.discover import Discovered, list_frames
from tasks.observe.progress import CHECK
from tasks.pipeline.chunk import Job, Labeled, label_chunks
from tasks.pipeline.sequence import (
    Closed,
    LabeledSequence,
    Opened,
    close_sequence,
    load_stored,
    open_sequence,
    stage,
)
from tasks.store import artifacts, manifests, quarantine, storage
from tasks.store.artifacts import Chunk
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import Manifest
from tasks.types import FrameSelection, SequenceRef


@dataclass(frozen=True)
class PieceRef:
    """What to begin: a sequence, a range of its chunks (None: all), and how it is cut."""

    sequence: SequenceRef
    chunks: tuple[int, int] | None
    selection: FrameSelection
    chunk_frames: int


@dataclass(frozen=True)
class Begun:
    """A piece that was begun.

    Attributes:
        opened: the sequence with the chunks that are this piece's.
        rest: the sequence's other chunks, which other shards do.
        attempt_uri: for `quarantine.end`, when the piece ends.

    """

    opened: Opened
    rest: tuple[Chunk, ...]
    attempt_uri: str


def begin_piece(job: Job, piece: PieceRef) -> Begun | Manifest:
    """List a sequence anew and open this piece of it, or return its manifest when it is complete.

    Raises:
        AutolabelError: it is gone, cannot be opened, or has killed too many workers.

    """
    sequence = piece.sequence
    found = Discovered(sequence, tuple(list_frames(sequence, piece.selection)))
    run_key, content_key = job.stamp.run_key, found.content_key
    try:
        return manifests.read_manifest(job.out_uri, run_key, sequence.sequence_id, content_key)
    except (storage.NotFoundError, IncompleteArtifactError):
        pass
    opened = open_sequence(job, found, piece.chunk_frames)
    first, stop = _range(piece, opened.chunks)
    mine, rest = opened.chunks[first:stop], opened.chunks[:first] + opened.chunks[stop:]
    case = quarantine.Case(job.out_uri, run_key, sequence.sequence_id, content_key)
    attempt_uri = quarantine.begin(case, _complete(job, mine), first)
    if attempt_uri is None:
        raise AutolabelError(
            f"given up: {quarantine.ATTEMPTS} workers died on this sequence without getting "
            "further; `autolabel backfill --retry-quarantined` tries it again"
        )
    return Begun(Opened(found, mine, opened.failures), rest, attempt_uri)


def _range(piece: PieceRef, chunks: tuple[Chunk, ...]) -> tuple[int, int]:
    """Which chunks are this piece's.

    Plans count chunks from frames alone; every camera's last chunk is shorter, so with several
    cameras there are more, and those are the last piece's.
    """
    if piece.chunks is None:
        return 0, len(chunks)
    first, stop = piece.chunks
    planned = math.ceil(sum(len(chunk.frames) for chunk in chunks) / piece.chunk_frames)
    return first, len(chunks) if stop >= planned else stop


def _complete(job: Job, chunks: tuple[Chunk, ...]) -> int:
    """Count chunks whose labels are there, by one listing a camera; whole or not is seen later."""
    folders = {chunk.stem.rpartition("/")[0] for chunk in chunks}
    names = {
        f"{folder}/{name}"
        for folder in folders
        for name in storage.list_names(storage.join(job.out_uri, folder))
    }
    return sum(f"{chunk.stem}.frames.parquet" in names for chunk in chunks)


def end_piece(job: Job, begun: Begun, labeled: list[Labeled]) -> Closed | None:
    """Close the sequence if all of its chunks are there now, whoever made them; else None.

    Two shards that finish the last two pieces at the same moment both close it, with equal bytes.
    """
    others = []
    for chunk in begun.rest:
        complete = artifacts.complete_labels(job.out_uri, chunk)
        if complete is None:
            return None
        record = manifests.ChunkRecord.of(chunk, complete)
        failures = tuple(one.failure for one in complete if one.failure)
        others.append(Labeled(record, (), failures, computed=False))
    together = sorted([*labeled, *others], key=lambda one: one.record.stem)
    return close_sequence(job, begun.opened, together)


def label_piece(job: Job, piece: PieceRef) -> LabeledSequence | Manifest:
    """Begin a piece, label its chunks and end it; a sequence that is complete is its manifest.

    Raises:
        SequenceError: something but single frames failed.

    """
    with stage("begin"):
        begun = begin_piece(job, piece)
    if isinstance(begun, Manifest):
        return begun
    try:
        with stage("label"):
            labeled = label_chunks(job, begun.opened.chunks)
        with stage(CHECK, labeled):
            closed = end_piece(job, begun, labeled)
        return LabeledSequence(tuple(labeled), closed, begun.opened.failures)
    finally:
        quarantine.end(begun.attempt_uri)


@task(name="label", task_run_name="label-{name}", cache_policy=NO_CACHE, persist_result=False)
def label_piece_task(job: Job, piece: PieceRef, name: str) -> LabeledSequence | Manifest:
    """Label one piece."""
    return label_piece(job, piece)


@task(name="load", task_run_name="load-{name}", cache_policy=NO_CACHE, persist_result=False)
def load_stored_task(dataset: str, out_uri: str, manifest: Manifest, name: str) -> dict[str, float]:
    """Load one complete sequence into FiftyOne."""
    return load_stored(dataset, out_uri, manifest)
