"""The steps of a chunk of frames: download, detect, segment.

Each does at most 64 frames and leaves its artifact in the run's storage, or finds it there and does
nothing. What the next step needs travels on with the chunk and is never read back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from sam2_core.types import Boxes
from tasks.masks.device_turn import DeviceTurn
from tasks.masks.rules import MaskRules, tidied
from tasks.observe.progress import DETECT, DOWNLOAD, SEGMENT
from tasks.pipeline.tools import Tools
from tasks.store import artifacts
from tasks.store.artifacts import Chunk, RunStamp, StoredChunk
from tasks.store.manifests import ChunkRecord
from tasks.store.reports import Seen
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef

if TYPE_CHECKING:
    from tasks.boxes.imported import ImportedBoxes
    from tasks.masks.model import ModelChoice


# Of a piece: one has the device, the other one is read, detected or written.
CHUNKS_AT_ONCE = 2


@dataclass(frozen=True)
class Job:
    """What every step of a run needs to know.

    Attributes:
        out_uri: the run's storage.
        stamp: what decides the labels, and so the keys.
        model: the model, resolved but not loaded.
        detector: name or path, "" where boxes are imported.
        boxes_uri: imported boxes, "" where a detector finds them.
        boxes_version: `ImportedBoxes.version` of those that the run began with.
        tiles: frames are looked at in so many parts each way, too.
        box_names_uri: names of their classes where they are in YOLO's text form.
        classes: only these; all when empty.
        min_score: only boxes scored at least so.
        rules: what is done to masks after the model.
        tracks: whether labels of one object over time get one id.
        fill_gaps: frames of the longest gap that is filled along a track; 0: none.
        counts_attempts: whether sequences that kill this process again and again are given up.
        tools: what the run works with in this process.

    """

    out_uri: str
    stamp: RunStamp
    model: ModelChoice
    detector: str
    boxes_uri: str
    classes: tuple[str, ...]
    min_score: float
    rules: MaskRules = field(default_factory=MaskRules)
    tracks: bool = True
    fill_gaps: int = 0
    counts_attempts: bool = False
    box_names_uri: str = ""
    boxes_version: str = ""
    tiles: int = 1
    tools: Tools = field(default_factory=Tools, repr=False, compare=False)


@dataclass(frozen=True)
class ChunkState:
    """A chunk and what the steps so far have made of it.

    Attributes:
        chunk: the chunk.
        frames: those on this machine, with `local_path`, until they are segmented.
        failures: frames without labels.
        has_boxes: whether boxes were in storage before.
        boxes: by frame index, from detection to segmentation.
        record: its line in the manifest, once its labels are complete.
        seen: what the sequence's report needs of every frame, once its labels are complete.
        versions: of the libraries that made its labels, once they are complete.
        computed: whether this run made its labels.
        seconds: by stage.

    """

    chunk: Chunk
    frames: tuple[FrameRef, ...] = ()
    failures: tuple[FrameFailure, ...] = ()
    has_boxes: bool = False
    boxes: Mapping[int, Boxes] = field(default_factory=dict)
    record: ChunkRecord | None = None
    seen: tuple[Seen, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    computed: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)

    def complete(self, stored: StoredChunk, *, computed: bool) -> ChunkState:
        """Return the chunk with its labels complete, without what only making them needed."""
        labeled = stored.labeled
        return replace(
            self,
            frames=(),
            failures=tuple(one.failure for one in labeled if one.failure),
            boxes={},
            record=ChunkRecord.of(self.chunk, labeled).with_checksums(stored),
            seen=tuple(map(Seen.of, labeled)),
            versions=stored.versions,
            computed=computed,
        )


def stored_chunk(job: Job, chunk: Chunk) -> ChunkState | None:
    """Return a chunk whose labels are complete in storage, else None."""
    stored = artifacts.complete_chunk(job.out_uri, chunk)
    return None if stored is None else ChunkState(chunk).complete(stored, computed=False)


def download_chunk(job: Job, chunk: Chunk, listed: Collection[str]) -> ChunkState:
    """Download a chunk's frames, unless its labels are complete.

    Labels whose frames failed to download are an answer only for as long as they still fail.

    Args:
        job: what every step knows.
        chunk: the chunk.
        listed: paths of tables in the run's storage: what is not among them is not asked for.

    """
    job.tools.check()
    started = time.perf_counter()
    stored = stored_chunk(job, chunk) if chunk.path("frames") in listed else None
    has_boxes = chunk.path("boxes") in listed
    absent = {one.index for one in stored.failures if one.may_yet_come} if stored else set()
    if stored and not absent:
        count_kept(job, len(chunk.frames), DOWNLOAD, DETECT, SEGMENT)
        return replace(stored, seconds=_since(started, DOWNLOAD))
    # Nothing is fetched for a model that may not label.
    job.tools.segmenters.refuse_known(job.model)
    frames, failures = _download(job, chunk)
    if stored and absent <= {failure.index for failure in failures}:
        count_kept(job, len(chunk.frames), DETECT, SEGMENT)
        return replace(stored, seconds=_since(started, DOWNLOAD))
    return ChunkState(
        chunk, frames, failures, has_boxes=has_boxes, seconds=_since(started, DOWNLOAD)
    )


def _since(started: float, stage: str) -> dict[str, float]:
    return {stage: time.perf_counter() - started}


def count_kept(job: Job, frames: int, *stages: str) -> None:
    """Report frames that need no work in these stages."""
    for stage in stages:
        job.tools.progress.advance(stage, frames, kept=True)


def _download(job: Job, chunk: Chunk) -> tuple[tuple[FrameRef, ...], tuple[FrameFailure, ...]]:
    from tasks.frames.download import download

    outcomes = download(chunk.frames, on_frame=lambda _: job.tools.progress.advance(DOWNLOAD))
    return (
        tuple(one for one in outcomes if isinstance(one, FrameRef)),
        tuple(one for one in outcomes if isinstance(one, FrameFailure)),
    )


def detect_chunk(job: Job, state: ChunkState) -> ChunkState:
    """Find or import the boxes of a chunk's frames, those that are not in storage already."""
    if state.record:
        return state
    job.tools.check()
    known: Mapping[int, Boxes] = {}
    if state.has_boxes:
        versions = job.stamp.versions
        known = artifacts.complete_boxes(job.out_uri, state.chunk, versions) or {}
    wanted = [frame for frame in state.frames if frame.index not in known]
    find = _finder(job) if wanted else None
    started = time.perf_counter()
    found = find(wanted) if find else {}
    boxes = {**known} | {i: one for i, one in found.items() if isinstance(one, Boxes)}
    if boxes != known:
        artifacts.write_boxes(job.out_uri, state.chunk, boxes, job.stamp)
    job.tools.progress.advance(DETECT, len(state.chunk.frames) - len(wanted), kept=True)
    failures = tuple(one for one in found.values() if isinstance(one, FrameFailure))
    return replace(
        state,
        failures=(*state.failures, *failures),
        boxes=boxes,
        seconds={**state.seconds, **_since(started, DETECT)},
    )


def _finder(job: Job) -> Callable[[list[FrameRef]], dict[int, Boxes | FrameFailure]]:
    """Load what finds boxes, once per process, so that it is not counted as a chunk's time."""
    if job.boxes_uri:
        imported = job.tools.imported(job.boxes_uri, job.box_names_uri, job.boxes_version)
        return partial(_imported_boxes, job, imported)
    from tasks.boxes.detect import detect
    from tasks.frames.images import keep_frame

    load, advance = job.tools.detectors.load, job.tools.progress.advance
    detector = load(job.detector, stamp=job.stamp.detector, backend=job.model.backend)
    return lambda frames: detect(
        frames,
        detector,
        job.classes,
        job.min_score,
        lambda *_: advance(DETECT),
        tiles=job.tiles,
        on_staged=keep_frame,
    )


def _imported_boxes(
    job: Job, imported: ImportedBoxes, frames: list[FrameRef]
) -> dict[int, Boxes | FrameFailure]:
    from tasks.boxes.imported import chosen_boxes

    result: dict[int, Boxes | FrameFailure] = {}
    for frame in frames:
        boxes = imported.of(frame)
        if isinstance(boxes, Boxes):
            boxes = chosen_boxes(boxes, job.classes, job.min_score)
        result[frame.index] = boxes
        job.tools.progress.advance(DETECT)
    return result


def segment_chunk(job: Job, state: ChunkState) -> ChunkState:
    """Make the masks of a chunk's boxes and write its labels; with them it is complete."""
    if state.record:
        return state
    job.tools.check()
    failed = {one.index: one for one in state.failures}
    labeled = [
        LabeledFrame(frame, Boxes.empty(), failure=failed[frame.index])
        for frame in state.chunk.frames
        if frame.index in failed
    ]
    job.tools.progress.advance(SEGMENT, len(labeled), kept=True)
    todo = [
        (frame, state.boxes[frame.index]) for frame in state.frames if frame.index not in failed
    ]
    if todo:
        job.tools.segmenters.load(job.model)  # not counted as the chunk's time
    turn, started = DeviceTurn(job.tools.device), time.perf_counter()
    if todo:
        labeled += _segment(job, todo, turn)
    stored = artifacts.complete_chunk(job.out_uri, state.chunk)
    if stored is None or any(one.failure and one.failure.may_yet_come for one in stored.labeled):
        stored = artifacts.write_labels(job.out_uri, state.chunk, labeled, job.stamp)
    # Else another worker was first: a manifest may name its files already.
    made = state.complete(stored, computed=True)
    spent = {**state.seconds, SEGMENT: time.perf_counter() - started - turn.waited_s}
    job.tools.progress.complete_chunk(spent, made.record.instances if made.record else 0)
    return replace(made, seconds=spent)


def label_chunks(
    job: Job, states: Sequence[ChunkState], detected: bool = False
) -> list[ChunkState]:
    """Detect and segment a piece's chunks: one is detected while another one is segmented.

    The stage in which an error was met is among its notes.

    Args:
        job: what every step knows.
        states: the chunks, downloaded.
        detected: they have their boxes.

    """

    def label(state: ChunkState) -> ChunkState:
        stage = DETECT
        try:
            state = state if detected else detect_chunk(job, state)
            stage = SEGMENT
            return segment_chunk(job, state)
        except Exception as error:
            error.add_note(stage)
            raise

    with ThreadPoolExecutor(CHUNKS_AT_ONCE, "chunk") as pool:
        return list(pool.map(label, states))


def _segment(
    job: Job, todo: list[tuple[FrameRef, Boxes]], turn: DeviceTurn
) -> Iterator[LabeledFrame]:
    from tasks.frames.images import kept_or_read
    from tasks.masks.segment import segment_frames

    segmenter = job.tools.segmenters.load(job.model)
    for one in segment_frames(segmenter, todo, kept_or_read, turn=turn):
        job.tools.progress.advance(SEGMENT)
        if one.masks and job.rules:
            one = replace(one, masks=tidied(one.masks, one.boxes, job.rules))  # noqa: PLW2901
        yield one
