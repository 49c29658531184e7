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
from tasks.observe.progress import CHECK, DETECT, DOWNLOAD, LOAD, OPEN, SEGMENT, TRACK
from tasks.pipeline.check import check_sequence
from tasks.pipeline.chunk import ChunkState, Job, detect_chunk, download_chunk, segment_chunk
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


def _failures(
    states: Iterable[ChunkState], before: Iterable[ChunkState] = ()
) -> list[FrameFailure]:
    """Failures of chunks, without those that an earlier task has told."""
    told = {failure for state in before for failure in state.failures}
    return [one for state in states for one in state.failures if one not in told]


def _stepped(
    job: Job,
    do: Callable[[Job, ChunkState], ChunkState],
    state: ChunkState,
    *,
    beside: bool = True,
) -> ChunkState:
    """Take a chunk through a step, in a process beside this one where there are some.

    Of several at a time each counts as long as it keeps the machine: its share.
    """
    processes = job.tools.processes
    try:
        if processes is None or not beside or state.record:
            return do(job, state)
        job.tools.check()
        made: ChunkState = processes.run(do, state, progress=job.tools.progress)
    except DeviceLostError as error:
        job.tools.lose(error)
        raise
    spent = {
        stage: seconds if stage in state.seconds else seconds / processes.count
        for stage, seconds in made.seconds.items()
    }
    return replace(made, seconds=spent)


@step(OPEN)
def open_task(job: Job, part: SequencePart, name: str) -> Opened:
    """List a sequence, open its videos, cut it into chunks."""
    job.tools.check()
    opened = open_part(job, part)
    frames = sum(len(chunk.frames) for chunk in opened.chunks)
    _tell(f"{counted(frames, 'frame')} in {counted(len(opened.chunks), 'chunk')}", opened.failures)
    return opened


@step(DOWNLOAD)
def download_task(job: Job, opened: Opened, first: int, stop: int, name: str) -> list[ChunkState]:
    """Bring the frames of a piece's chunks to this machine."""
    states = [download_chunk(job, chunk, opened.listed) for chunk in opened.chunks[first:stop]]
    _tell(_frames(states), _failures(states))
    return states


@step(DETECT)
def detect_task(job: Job, states: Sequence[ChunkState], name: str) -> list[ChunkState]:
    """Find the boxes of a piece's frames."""
    # Boxes that are imported need no device, and a file of them is opened once.
    found = [_stepped(job, detect_chunk, state, beside=not job.boxes_uri) for state in states]
    boxes = sum(len(boxes) for state in found for boxes in state.boxes.values())
    _tell(f"{_frames(found)}, {counted(boxes, 'new box', 'new boxes')}", _failures(found, states))
    return found


@step(SEGMENT)
def segment_task(job: Job, states: Sequence[ChunkState], name: str) -> list[ChunkState]:
    """Make the masks of a piece's boxes."""
    with job.tools.segmenting:
        made = [_stepped(job, segment_chunk, state) for state in states]
    masks = sum(one.record.instances - one.record.rejected for one in made if one.record)
    _tell(f"{_frames(made)}, {counted(masks, 'mask')}", _failures(made, states))
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
