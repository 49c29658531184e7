"""The steps of a chunk of frames: download, detect, segment.

Each does at most 64 frames and leaves its artifact in the run's storage, or finds it there and does
nothing. What the next step needs travels on with the chunk, in this process: its pictures are
decoded once and kept from the detector to the mask model, as far as memory for them goes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sam2_core.preprocess import StagedFrame
from sam2_core.types import Boxes, ImageArray
from tasks.boxes.imported import ImportedBoxes, chosen_boxes
from tasks.masks.rules import tidied
from tasks.observe.progress import DETECT, DOWNLOAD, SEGMENT
from tasks.pipeline.run_context import DeviceTurn, Job
from tasks.store import artifacts
from tasks.store.artifacts import Chunk, StoredChunk
from tasks.store.manifests import ChunkRecord, Tally, tally_of
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef


@dataclass(frozen=True)
class ChunkState:
    """A chunk and what the steps so far have made of it.

    Attributes:
        chunk: the chunk.
        frames: those on this machine, with `local_path`, until they are segmented.
        failures: frames without labels.
        boxes: by frame index, from detection to segmentation; None before and after.
        record: its line in the manifest, once its labels are complete.
        tally: what the sequence's report counts, once its labels are complete.
        versions: of the libraries that made its labels, once they are complete.
        computed: whether this run made its labels.
        seconds: by stage.

    """

    chunk: Chunk
    frames: tuple[FrameRef, ...] = ()
    failures: tuple[FrameFailure, ...] = ()
    boxes: Mapping[int, Boxes] | None = None
    record: ChunkRecord | None = None
    tally: Tally = field(default_factory=Counter)
    versions: Mapping[str, str] = field(default_factory=dict)
    computed: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)

    def with_labels(self, stored: StoredChunk, *, computed: bool) -> ChunkState:
        """Return the chunk with its labels, without what only making them needed."""
        labeled = stored.labeled
        return replace(
            self,
            frames=(),
            failures=tuple(frame.failure for frame in labeled if frame.failure),
            boxes=None,
            record=ChunkRecord.of(self.chunk, labeled).with_checksums(stored),
            tally=tally_of(labeled),
            versions=stored.versions,
            computed=computed,
        )


def stored_chunk(job: Job, chunk: Chunk) -> ChunkState | None:
    """Return a chunk whose labels are complete in storage, else None."""
    stored = artifacts.find_chunk(job.params.out, chunk)
    return None if stored is None else ChunkState(chunk).with_labels(stored, computed=False)


def download_chunk(job: Job, chunk: Chunk) -> ChunkState:
    """Download a chunk's frames, unless its labels are complete.

    Labels whose frames failed to download are an answer only for as long as they still fail.
    """
    from tasks.frames.download import download

    job.context.check()
    started, advance = time.perf_counter(), job.context.progress.advance
    stored = stored_chunk(job, chunk) if "frames" in chunk.tables else None
    absent = (
        {failure.index for failure in stored.failures if failure.may_yet_come} if stored else set()
    )
    if stored and not absent:
        count_kept(job, len(chunk.frames), DOWNLOAD, DETECT, SEGMENT)
        return replace(stored, seconds={DOWNLOAD: time.perf_counter() - started})
    # Nothing is fetched for a model that may not label.
    job.context.segmenters.refuse_known(job.model)
    outcomes = download(chunk.frames, on_frame=lambda _: advance(DOWNLOAD))
    failures = tuple(outcome for outcome in outcomes if isinstance(outcome, FrameFailure))
    seconds = {DOWNLOAD: time.perf_counter() - started}
    if stored and absent <= {failure.index for failure in failures}:
        count_kept(job, len(chunk.frames), DETECT, SEGMENT)
        return replace(stored, seconds=seconds)
    frames = tuple(outcome for outcome in outcomes if isinstance(outcome, FrameRef))
    return ChunkState(chunk, frames, failures, seconds=seconds)


def count_kept(job: Job, frames: int, *stages: str) -> None:
    """Report frames that need no work in these stages."""
    for stage in stages:
        job.context.progress.advance(stage, frames, kept=True)


def detect_chunk(job: Job, state: ChunkState) -> ChunkState:
    """Find or import the boxes of a chunk's frames, those that are not in storage already."""
    if state.record or state.boxes is not None:
        return state
    job.context.check()
    known: Mapping[int, Boxes] = {}
    if "boxes" in state.chunk.tables:
        versions = job.stamp.versions
        known = artifacts.find_boxes(job.params.out, state.chunk, versions) or {}
    wanted = [frame for frame in state.frames if frame.index not in known]
    count_kept(job, len(state.chunk.frames) - len(wanted), DETECT)
    found: Mapping[int, Boxes | FrameFailure] = {}
    started = time.perf_counter()
    if wanted and job.params.boxes:
        imported = job.imported()
        started = time.perf_counter()  # opening them is no chunk's time, nor is loading a model
        found = {frame.index: _chosen(job, imported, frame) for frame in wanted}
    elif wanted:
        from tasks.boxes.detect import detect

        detector = job.load_detector()
        started = time.perf_counter()
        found = detect(
            wanted,
            detector,
            job.params.wanted_classes,
            job.params.least_score,
            lambda *_: job.context.progress.advance(DETECT),
            tiles=job.params.tiles,
            on_read=lambda frame, read: job.context.kept_frames().keep(_picture(frame), read),
        )
    boxes = {**known} | {i: outcome for i, outcome in found.items() if isinstance(outcome, Boxes)}
    if boxes != known:
        artifacts.write_boxes(job.params.out, state.chunk, boxes, job.stamp)
    failures = tuple(outcome for outcome in found.values() if isinstance(outcome, FrameFailure))
    return replace(
        state,
        failures=(*state.failures, *failures),
        boxes=boxes,
        seconds={**state.seconds, DETECT: time.perf_counter() - started},
    )


def _chosen(job: Job, imported: ImportedBoxes, frame: FrameRef) -> Boxes | FrameFailure:
    boxes = imported.of(frame)
    job.context.progress.advance(DETECT)
    return (
        chosen_boxes(boxes, job.params.wanted_classes, job.params.least_score)
        if isinstance(boxes, Boxes)
        else boxes
    )


def segment_chunk(job: Job, state: ChunkState) -> ChunkState:
    """Make the masks of a chunk's boxes and write its labels; with them it is complete."""
    if state.record:
        return state
    job.context.check()
    failed = {failure.index: failure for failure in state.failures}
    labeled = [
        LabeledFrame(frame, Boxes.empty(), failure=failed[frame.index])
        for frame in state.chunk.frames
        if frame.index in failed
    ]
    count_kept(job, len(labeled), SEGMENT)
    boxes = state.boxes or {}
    todo = [(frame, boxes[frame.index]) for frame in state.frames if frame.index not in failed]
    if todo:  # not counted as the chunk's time
        job.context.segmenters.load(job.model)
        if job.params.follow:
            job.context.segmenters.follow_backend(job.model)
    turn, started = DeviceTurn(job.context.device), time.perf_counter()
    if todo:
        labeled += _segment(job, state.chunk, todo, turn)
    stored = artifacts.find_chunk(job.params.out, state.chunk)
    if stored is None or any(
        frame.failure and frame.failure.may_yet_come for frame in stored.labeled
    ):
        stored = artifacts.write_labels(job.params.out, state.chunk, labeled, job.stamp)
        job.context.keep_fresh(state.chunk.stem, stored)
    # Else another worker was first: a manifest may name its files already.
    made = state.with_labels(stored, computed=True)
    spent = {**state.seconds, SEGMENT: time.perf_counter() - started - turn.waited_s}
    job.context.progress.finish_chunk(spent, made.record.instances if made.record else 0)
    return replace(made, seconds=spent)


def _segment(
    job: Job, chunk: Chunk, todo: list[tuple[FrameRef, Boxes]], turn: DeviceTurn
) -> Iterator[LabeledFrame]:
    from tasks.frames.images import read_image
    from tasks.masks.segment import segment_frames

    kept = job.context.kept_frames()
    pictures: dict[int, ImageArray] = {}  # of the few frames that were read and not followed yet

    def read(frame: FrameRef) -> ImageArray | StagedFrame:
        found = kept.take(_picture(frame))
        pixels = read_image(frame) if found is None else found.pixels
        if job.params.follow:
            pictures[frame.index] = pixels
        return found if found and found.gpu else pixels

    labeled = segment_frames(job.context.segmenters.load(job.model), todo, read, turn=turn)
    if job.params.follow:
        from tasks.masks.follow import follow_objects, with_boxes_around

        backend = job.context.segmenters.follow_backend(job.model)
        labeled = follow_objects(
            backend, chunk.frames, labeled, lambda frame: pictures.pop(frame.index)
        )
    try:
        for frame in labeled:
            job.context.progress.advance(SEGMENT)
            if job.rules and frame.masks is not None:
                frame = replace(frame, masks=tidied(frame.masks, frame.boxes, job.rules))  # noqa: PLW2901
                if frame.followed:
                    frame = with_boxes_around(frame)  # noqa: PLW2901
            yield frame
    finally:
        for ref, _ in todo:
            kept.take(_picture(ref))


def _picture(frame: FrameRef) -> tuple[str, ...]:
    """Tell the picture of a frame from others, among those that are kept."""
    return frame.uri, frame.etag, frame.local_path
