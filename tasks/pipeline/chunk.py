"""Chunks of frames through the pipeline: download, detect, segment.

Each step does at most 64 frames and leaves its artifact in the run's storage, or finds it there and
does nothing. A step is a plain function: a Prefect task of its own would cost its server 100 ms of
CPU, as much as the device needs for several frames.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sam2_core.types import AutolabelError, Boxes
from tasks.masks.device_turn import DeviceTurn
from tasks.observe.progress import DETECT, DOWNLOAD, SEGMENT, advance, complete_chunk
from tasks.pipeline import stopping
from tasks.store import artifacts
from tasks.store.artifacts import Chunk, RunStamp
from tasks.store.manifests import ChunkRecord
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef

if TYPE_CHECKING:
    from sam2_core.segmenter import Segmenter
    from tasks.boxes.imported import ImportedBoxes
    from tasks.masks.model import ModelChoice

# One has the device, one is being written, the others download and detect ahead.
CHUNKS_AT_ONCE = 6
_threads = ThreadPoolExecutor(CHUNKS_AT_ONCE, "chunk")


@dataclass(frozen=True)
class Job:
    """What every step of a run needs to know.

    Attributes:
        out_uri: the run's storage.
        stamp: what decides the labels, and so the keys.
        model: the model, resolved but not loaded.
        detector: name or path, "" where boxes are imported.
        boxes_uri: imported boxes, "" where a detector finds them.
        classes: only these; all when empty.
        min_score: only boxes scored at least so.
        needs_images: whether frames must be on this machine even when their labels are complete.

    """

    out_uri: str
    stamp: RunStamp
    model: ModelChoice
    detector: str
    boxes_uri: str
    classes: tuple[str, ...]
    min_score: float
    needs_images: bool


@dataclass(frozen=True)
class Fetched:
    """A chunk whose frames are on this machine, or known not to come.

    Attributes:
        chunk: the chunk.
        frames: those that came, with `local_path`.
        failures: those that did not.
        complete: the chunk's labels, where nothing is left to compute.
        seconds: spent here.

    """

    chunk: Chunk
    frames: tuple[FrameRef, ...]
    failures: tuple[FrameFailure, ...]
    complete: ChunkRecord | None
    known_failures: tuple[FrameFailure, ...]
    seconds: float


@dataclass(frozen=True)
class Detected:
    """A chunk whose boxes are in the run's storage; `failures` are frames that gave none."""

    fetched: Fetched
    failures: tuple[FrameFailure, ...]
    seconds: float


@dataclass(frozen=True)
class Labeled:
    """A chunk whose labels are in the run's storage.

    Attributes:
        record: its line in the manifest.
        frames: those on this machine, with `local_path`.
        failures: frames without labels.
        computed: False where everything was there before.
        seconds: by stage.

    """

    record: ChunkRecord
    frames: tuple[FrameRef, ...]
    failures: tuple[FrameFailure, ...]
    computed: bool
    seconds: Mapping[str, float] = field(default_factory=dict)


def fetch_chunk(job: Job, chunk: Chunk) -> Fetched:
    """Download a chunk's frames, unless its labels are complete.

    Labels whose frames failed to download are an answer only for as long as they still fail.
    """
    stopping.check()
    started = time.perf_counter()
    labeled = artifacts.complete_labels(job.out_uri, chunk)
    known = tuple(one.failure for one in labeled or () if one.failure)
    record = ChunkRecord.of(chunk, labeled) if labeled is not None else None
    absent = {failure.index for failure in known if failure.stage == DOWNLOAD}
    if record and not absent and not job.needs_images:
        _keep(chunk, DOWNLOAD, DETECT, SEGMENT)
        return Fetched(chunk, (), (), record, known, time.perf_counter() - started)
    frames, failures = _download(chunk)
    if record and not absent <= {failure.index for failure in failures}:
        record = None  # a frame that would not come has come
    if record:
        _keep(chunk, DETECT, SEGMENT)
    return Fetched(chunk, frames, failures, record, known, time.perf_counter() - started)


def _keep(chunk: Chunk, *stages: str) -> None:
    for stage in stages:
        advance(stage, len(chunk.frames), kept=True)


def _download(chunk: Chunk) -> tuple[tuple[FrameRef, ...], tuple[FrameFailure, ...]]:
    from tasks.frames.download import download

    outcomes = download(chunk.frames, on_frame=lambda _: advance(DOWNLOAD))
    return (
        tuple(one for one in outcomes if isinstance(one, FrameRef)),
        tuple(one for one in outcomes if isinstance(one, FrameFailure)),
    )


def detect_chunk(job: Job, fetched: Fetched) -> Detected:
    """Find or import the boxes of a chunk's frames, those that are not in storage already."""
    if fetched.complete:
        return Detected(fetched, (), 0.0)
    stopping.check()
    known = artifacts.complete_boxes(job.out_uri, fetched.chunk) or {}
    wanted = [frame for frame in fetched.frames if frame.index not in known]
    if wanted:
        _ready(job)
    started = time.perf_counter()
    found = _boxes_of(job, wanted) if wanted else {}
    boxes = known | {i: one for i, one in found.items() if isinstance(one, Boxes)}
    if boxes != known:
        artifacts.write_boxes(job.out_uri, fetched.chunk, boxes, job.stamp)
    advance(DETECT, len(fetched.chunk.frames) - len(wanted), kept=True)
    failures = tuple(one for one in found.values() if isinstance(one, FrameFailure))
    return Detected(fetched, failures, time.perf_counter() - started)


def _ready(job: Job) -> None:
    """Load what finds boxes, once a process, so that it is not counted as a chunk's time."""
    if job.boxes_uri:
        _opened_import(job.boxes_uri, job.stamp.detector)
        return
    from tasks.boxes.yolox import load_detector

    load_detector(job.detector, stamp=job.stamp.detector, backend=job.model.backend)


def _boxes_of(job: Job, frames: list[FrameRef]) -> dict[int, Boxes | FrameFailure]:
    if job.boxes_uri:
        return _imported_boxes(job, frames)
    from tasks.boxes.detect import detect
    from tasks.boxes.yolox import load_detector

    detector = load_detector(job.detector, stamp=job.stamp.detector, backend=job.model.backend)
    return detect(frames, detector, job.classes, job.min_score, on_frame=lambda *_: advance(DETECT))


def _imported_boxes(job: Job, frames: list[FrameRef]) -> dict[int, Boxes | FrameFailure]:
    from tasks.boxes.imported import chosen_boxes

    imported = _opened_import(job.boxes_uri, job.stamp.detector)
    result: dict[int, Boxes | FrameFailure] = {}
    for frame in frames:
        boxes = imported.of(frame)
        if isinstance(boxes, Boxes):
            boxes = chosen_boxes(boxes, job.classes, job.min_score)
        result[frame.index] = boxes
        advance(DETECT)
    return result


@functools.lru_cache(maxsize=2)
def _opened_import(boxes_uri: str, stamp: str) -> ImportedBoxes:
    from tasks.boxes.imported import import_boxes

    imported = import_boxes(boxes_uri)
    if imported.stamp != stamp:
        raise AutolabelError(f"{boxes_uri} changed while it was being read: run again")
    return imported


def segment_chunk(job: Job, detected: Detected) -> Labeled:
    """Make the masks of a chunk's boxes and write its labels; with them it is complete."""
    fetched = detected.fetched
    spent = {DOWNLOAD: fetched.seconds, DETECT: detected.seconds}
    if fetched.complete:
        kept = fetched.known_failures
        return Labeled(fetched.complete, fetched.frames, kept, computed=False, seconds=spent)
    stopping.check()
    boxes = artifacts.read_boxes(job.out_uri, fetched.chunk) if fetched.frames else {}
    failed = {one.index: one for one in (*fetched.failures, *detected.failures)}
    labeled = [_unlabeled(frame, failed) for frame in fetched.chunk.frames if frame.index in failed]
    advance(SEGMENT, len(labeled), kept=True)
    todo = [(frame, boxes[frame.index]) for frame in fetched.frames if frame.index in boxes]
    if todo:
        _warm(job)
    turn, started = DeviceTurn(), time.perf_counter()
    if todo:
        labeled += _segment(job, todo, turn)
    there = artifacts.complete_labels(job.out_uri, fetched.chunk)
    if there is not None and not any(map(_not_fetched, there)):
        labeled = there  # another worker was first: a manifest may name its files already
    else:
        artifacts.write_labels(job.out_uri, fetched.chunk, labeled, job.stamp)
    record = ChunkRecord.of(fetched.chunk, labeled)
    labeled.sort(key=lambda one: one.frame.index)
    failures = tuple(one.failure for one in labeled if one.failure)
    spent[SEGMENT] = time.perf_counter() - started - turn.waited_s
    complete_chunk(spent, record.instances)
    return Labeled(record, fetched.frames, failures, computed=True, seconds=spent)


def _not_fetched(one: LabeledFrame) -> bool:
    return one.failure is not None and one.failure.stage == DOWNLOAD


def _unlabeled(frame: FrameRef, failed: Mapping[int, FrameFailure]) -> LabeledFrame:
    return LabeledFrame(frame, Boxes.empty(), failure=failed[frame.index])


def _warm(job: Job) -> Segmenter:
    from tasks.masks.model import warm_segmenter

    return warm_segmenter(job.model)


def _segment(
    job: Job, todo: list[tuple[FrameRef, Boxes]], turn: DeviceTurn
) -> Iterator[LabeledFrame]:
    from tasks.frames.images import read_image
    from tasks.masks.segment import segment_frames

    for one in segment_frames(_warm(job), todo, read_image, turn=turn):
        advance(SEGMENT)
        yield one


def label_chunk(job: Job, chunk: Chunk) -> Labeled:
    """Download, detect and segment one chunk."""
    return segment_chunk(job, detect_chunk(job, fetch_chunk(job, chunk)))


class ChunksFailedError(AutolabelError):
    """Some chunks of a sequence failed; `labeled` are the others, `cause` is the first error."""

    def __init__(self, cause: Exception, labeled: Sequence[Labeled]) -> None:
        super().__init__(str(cause))
        self.cause, self.labeled = cause, tuple(labeled)


def label_chunks(job: Job, chunks: Iterable[Chunk]) -> list[Labeled]:
    """Label chunks, several at once, each with what the caller's context says of logging.

    Chunks of sequences that are labeled at the same time share the threads, first come, first
    served: so one chunk downloads, one has the device, and one is written, whatever sequences they
    belong to.

    Raises:
        ChunksFailedError: after all chunks have ended.

    """
    futures = [_threads.submit(copy_context().run, label_chunk, job, chunk) for chunk in chunks]
    labeled, cause = [], None
    for future in futures:
        try:
            labeled.append(future.result())
        except Exception as error:  # noqa: BLE001 - told when the others have ended
            cause = cause or error
    if cause:
        raise ChunksFailedError(cause, labeled)
    return labeled
