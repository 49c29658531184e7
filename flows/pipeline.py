"""The pipeline: what is done to a sequence, step by step.

    open -> download -> detect -> segment -> check -> track -> load

`run_sequence` is all of it; `label_block` is its middle, from download to segment. `submit` hands a
step to Prefect, or to a thread. Retries, outcomes and how many sequences are under way are in
`flows.label_sequences`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from sam2_core.machine import usable_cores
from sam2_core.types import DeviceLostError
from tasks.frames.discover import FoundSequence
from tasks.observe.progress import CHECK, DETECT, LABEL, LOAD, OPEN, SEGMENT, TRACK
from tasks.pipeline.chunk import ChunkState, detect_chunk, download_chunk, segment_chunk
from tasks.pipeline.device_processes import labeled_beside
from tasks.pipeline.outcome import SequenceOutcome, complete_before
from tasks.pipeline.run_context import Job
from tasks.pipeline.sequence import (
    check_sequence,
    load_into_dataset,
    open_sequence,
    track_sequence,
)

# Chunks that are detected and segmented side by side: one has the device, the other one is read,
# detected or written.
CHUNKS_AT_ONCE = 2
# Of steps: blocks that are labeled, one that downloads, and what waits; for as many processes as
# cores may have beside a GPU (tasks/pipeline/device_processes.py).
THREADS = max(8, 2 * usable_cores())


class Handle(Protocol):
    """A step that was submitted."""

    def result(self) -> Any:
        """Wait for it; returns what it returned, or raises what it raised."""


# Takes a step's stage and name, the step, and its values: some are handles of steps before it.
Submit = Callable[..., Handle]


def run_sequence(
    job: Job,
    part: FoundSequence,
    submit: Submit,
    sizes: Iterator[int],
    prepared: Handle | None,
) -> Iterator[tuple[str, Handle]]:
    """Submit the steps of a sequence; yields each with its stage, that of opening first.

    Args:
        job: for every step.
        part: the sequence.
        submit: see `Submit`.
        sizes: chunks of the next block; a block is what one task downloads and labels.
        prepared: gives what the dataset holds; None where labels are not loaded.

    Raises:
        Exception: the sequence cannot be opened.

    """
    name = part.sequence_id
    outcome: Any = complete_before(part)
    if part.manifest is None:
        opened = submit(OPEN, name, open_sequence, job, part)
        yield OPEN, opened  # others are opened before this one goes on
        labeled = []
        for first, stop, block in _blocks(name, len(opened.result().work), sizes):
            labeled.append(submit(LABEL, block, label_block, job, opened, first, stop))
            yield LABEL, labeled[-1]
        outcome = submit(CHECK, name, check_sequence, job, opened, labeled)
        yield CHECK, outcome
    if job.params.tracks and part.tracks_made is None:
        outcome = submit(TRACK, name, track_sequence, job, outcome)
        yield TRACK, outcome
    if prepared and not _is_loaded(outcome, prepared):
        yield LOAD, prepared
        yield LOAD, submit(LOAD, name, load_into_dataset, job, outcome, prepared)


def label_block(job: Job, opened: FoundSequence, first: int, stop: int) -> list[ChunkState]:
    """Download, detect and segment some chunks of a sequence, those from `first` to `stop`."""
    states = [download_chunk(job, chunk) for chunk in opened.work[first:stop]]
    with job.context.labeling:
        processes = job.context.processes
        if processes and not all(state.record for state in states):
            return labeled_beside(processes, job, states, label_chunks)
        return label_chunks(job, states)


def label_chunks(job: Job, states: Sequence[ChunkState]) -> list[ChunkState]:
    """Detect and segment chunks: one is detected while another one is segmented.

    Each in a copy of this thread's context: Prefect shows what they log with their run.
    """
    steps = [partial(copy_context().run, detect_and_segment, job, state) for state in states]
    with ThreadPoolExecutor(CHUNKS_AT_ONCE, "chunk") as pool:
        return list(pool.map(lambda step: step(), steps))


def detect_and_segment(job: Job, state: ChunkState) -> ChunkState:
    """Find the boxes of a chunk and make their masks; an error has its stage as a note."""
    stage = DETECT
    try:
        detected = detect_chunk(job, state)
        stage = SEGMENT
        return segment_chunk(job, detected)
    except Exception as error:
        if isinstance(error, DeviceLostError):
            job.context.lose(error)
        error.add_note(stage)
        raise


def _blocks(name: str, chunks: int, sizes: Iterator[int]) -> Iterator[tuple[int, int, str]]:
    """First chunk, the one after the last, and name of every block of a sequence."""
    first = 0
    while first < chunks:
        stop = min(first + next(sizes), chunks)
        whole = (first, stop) == (0, chunks)
        yield first, stop, name if whole else f"{name} {first}-{stop}"
        first = stop


def _is_loaded(outcome: Any, prepared: Handle) -> bool:
    """Whether a dataset holds a sequence that no step was submitted for; unknown is no."""
    if isinstance(outcome, SequenceOutcome):
        with contextlib.suppress(Exception):
            return outcome.is_in(prepared.result())
    return False


class Threads(AbstractContextManager["Threads"]):
    """Does steps on threads of this process: `submit` without Prefect.

    A step waits in its thread for those that it is given the handles of. These were submitted
    before it, and threads take steps in that order, so that somebody always gets on.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "step")

    def submit(self, stage: str, name: str, step: Callable[..., Any], *values: Any) -> Future[Any]:
        """Submit a step; see `Submit`. Stage and name are for those who show them."""
        return self._pool.submit(lambda: step(*map(_value_of, values)))

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _value_of(value: Any) -> Any:
    if isinstance(value, Future):
        return value.result()
    return [_value_of(item) for item in value] if isinstance(value, list) else value
