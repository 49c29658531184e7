"""The Prefect tasks of the pipeline: thin, one for each step of a piece of a sequence.

`flows.pipeline` joins them by their futures. What a step hands to the next stays in the process and
is small: frames by their addresses, boxes, counts. Pixels and masks are never among it.
"""

# Without `from __future__ import annotations`: Prefect reads the annotations when it runs.
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from prefect import Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from sam2_core.types import DeviceLostError
from tasks.errors import redacted_errors
from tasks.observe.progress import CHECK, DETECT, LABEL, LOAD, OPEN, SEGMENT, TRACK
from tasks.pipeline.check import check_sequence
from tasks.pipeline.chunk import ChunkState, Job, detect_chunk, download_chunk, label_chunks
from tasks.pipeline.load import load_labels, prepare_load
from tasks.pipeline.open import Opened, open_part
from tasks.pipeline.outcome import SequenceOutcome, SequencePart
from tasks.pipeline.tools import Tools
from tasks.pipeline.track import track_sequence
from tasks.store.manifests import Manifest
from tasks.store.retry import PATIENCE_S, until_answered
from tasks.types import FrameFailure
from tasks.wording import counted

# Chunks of a piece: a task run costs Prefect's server up to 0.1 s of CPU, whatever it does.
MOST_CHUNKS = 8
# A task's log names so many; the run's report and its table in Prefect have all.
FAILURES_TOLD = 20

Given = ParamSpec("Given")
Result = TypeVar("Result")


def step(name: str, of: str = "name") -> Callable[[Callable[Given, Result]], Task[Given, Result]]:
    """Make a function a Prefect task whose result stays here and whose errors hold no secret.

    Args:
        name: of the task.
        of: the parameter that tells one of its runs from another, "" for none.

    """
    run_name = f"{name} {{{of}}}" if of else name
    as_task = task(name=name, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False)

    def made(function: Callable[Given, Result]) -> Task[Given, Result]:
        # Not `redacted_errors()` as a decorator: it holds a generator, and Prefect pickles flows.
        @functools.wraps(function)
        def redacting(*values: Given.args, **named: Given.kwargs) -> Result:
            with redacted_errors():
                return function(*values, **named)

        return as_task(redacting)

    return made


def patiently(call: Callable[[], Result], what: str, patience_s: float = PATIENCE_S) -> Result:
    """Call again while storage does not answer, for half an hour at most, and say so in the log.

    For flows that nobody waits at; a command says at once what is wrong.
    """
    return until_answered(call, what, get_run_logger().warning, patience_s)


def _tell(text: str, failures: Iterable[FrameFailure] = ()) -> None:
    """Log what a task made, and which files have no labels and why."""
    logger = get_run_logger()
    logger.info("%s", text)
    failed = list(failures)
    for one in failed[:FAILURES_TOLD]:
        logger.warning("%s failed in %s: %s", one.uri.rpartition("/")[2], one.stage, one.reason)
    if len(failed) > FAILURES_TOLD:
        logger.warning("%d more frames failed", len(failed) - FAILURES_TOLD)


def _frames(states: Iterable[ChunkState]) -> str:
    return counted(sum(len(state.chunk.frames) for state in states), "frame")


def _failures(states: Iterable[ChunkState]) -> list[FrameFailure]:
    return [one for state in states for one in state.failures]


def labeled(job: Job, states: Sequence[ChunkState]) -> list[ChunkState]:
    """Detect and segment a piece's chunks, in a process beside this one where there are some.

    Of several at a time each counts as long as it keeps the machine: its share.
    """
    processes = job.tools.processes
    try:
        if processes is None or all(one.record for one in states):
            return label_chunks(job, states)
        if job.boxes_uri:  # they need no device, and a file of them is opened once
            states = [detect_chunk(job, one) for one in states]
        job.tools.check()
        made = processes.run(label_chunks, states, bool(job.boxes_uri))
    except DeviceLostError as error:
        job.tools.lose(error)
        raise
    return [
        _told(job, before, after, processes.count)
        for before, after in zip(states, made, strict=True)
    ]


def _told(job: Job, before: ChunkState, after: ChunkState, processes: int) -> ChunkState:
    """Report what another process has done to a chunk."""
    spent = {
        stage: seconds if stage in before.seconds else seconds / processes
        for stage, seconds in after.seconds.items()
    }
    if not before.record:
        for stage in (SEGMENT,) if job.boxes_uri else (DETECT, SEGMENT):
            job.tools.progress.advance(stage, len(after.chunk.frames))
        instances = after.record.instances if after.record else 0
        job.tools.progress.complete_chunk(spent, instances)
    return replace(after, seconds=spent)


@step(OPEN)
def open_task(job: Job, part: SequencePart, name: str) -> Opened:
    """List a sequence, open its videos, cut it into chunks."""
    job.tools.check()
    opened = open_part(job, part)
    frames = sum(len(chunk.frames) for chunk in opened.chunks)
    _tell(f"{counted(frames, 'frame')} in {counted(len(opened.chunks), 'chunk')}", opened.failures)
    return opened


@step(LABEL)
def label_task(job: Job, opened: Opened, first: int, stop: int, name: str) -> list[ChunkState]:
    """Bring a piece's frames to this machine, find their boxes, and make the masks of these."""
    states = [download_chunk(job, chunk, opened.listed) for chunk in opened.chunks[first:stop]]
    with job.tools.labeling:
        made = labeled(job, states)
    masks = sum(one.record.instances - one.record.rejected for one in made if one.record)
    _tell(f"{_frames(made)}, {counted(masks, 'mask')}", _failures(made))
    return made


@step(CHECK)
def check_task(
    job: Job, opened: Opened, pieces: Sequence[Sequence[ChunkState]], name: str
) -> SequenceOutcome:
    """Check a sequence's labels and declare it complete."""
    outcome = check_sequence(job, opened, [state for piece in pieces for state in piece])
    frames, masks = counted(outcome.frames, "frame"), outcome.masks
    missing = "" if outcome.manifest else ", the rest of it is done by other shards"
    _tell(f"{frames}, {masks}{missing}")
    return outcome


@step(TRACK)
def track_task(job: Job, labeled: SequenceOutcome, name: str) -> SequenceOutcome:
    """Find out which of a sequence's labels show one object."""
    processes = job.tools.processes
    if processes is None or labeled.manifest is None:
        outcome = track_sequence(job, labeled)
    else:
        outcome = processes.run(track_sequence, labeled)
    _tell(counted(outcome.tracks, "track"))
    return outcome


@step("prepare", of="dataset")
def prepare_task(
    tools: Tools, dataset: str, cameras: Sequence[str], out_uri: str
) -> frozenset[str]:
    """Make the dataset ready for loads; returns the manifests that it holds already."""
    given = (dataset, tuple(cameras), out_uri)
    if tools.loader is None:
        return prepare_load(*given)
    from tasks.dataset.database import ensure_database

    ensure_database()  # ours ends with this process, not with the loader
    held: frozenset[str] = tools.loader.run(prepare_load, *given)
    return held


@step(LOAD)
def load_task(
    tools: Tools,
    dataset: str,
    out_uri: str,
    labeled: SequenceOutcome | Manifest | None,
    *,
    loaded: frozenset[str],
    name: str,
) -> Any:
    """Load a sequence's labels into FiftyOne, unless it is not complete or there already."""
    if isinstance(labeled, SequenceOutcome):
        manifest, there = labeled.manifest, labeled.is_in(loaded)
    else:
        manifest, there = labeled, bool(labeled and labeled.version in loaded)
    if manifest is None or there:
        return None
    given = (dataset, out_uri, manifest)
    done = load_labels(*given) if tools.loader is None else tools.loader.run(load_labels, *given)
    _tell(f"{counted(manifest.frames - manifest.failed, 'frame')} loaded into {dataset}")
    tools.progress.advance(LOAD, manifest.frames)
    return done
