"""The Prefect tasks of the pipeline: thin, one for each step of a piece of a sequence.

`flows.pipeline` joins them by their futures. What a step hands to the next stays in the process and
is small: frames by their addresses, boxes, counts. Pixels and masks are never among it.
"""

# Without `from __future__ import annotations`: Prefect reads the annotations when it runs.
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from tasks.errors import redacted_errors
from tasks.observe.progress import CHECK, DETECT, DOWNLOAD, LOAD, OPEN, SEGMENT, Progress
from tasks.pipeline.chunk import ChunkState, Job, detect_chunk, download_chunk, segment_chunk
from tasks.pipeline.outcome import SequenceOutcome, SequencePart
from tasks.pipeline.sequence import Opened, check_sequence, load_labels, open_part
from tasks.store.manifests import Manifest

# Chunks of a piece: a task run costs Prefect's server up to 0.1 s of CPU, whatever it does.
MOST_CHUNKS = 8

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
    return lambda function: as_task(redacted_errors()(function))


@step(OPEN)
def open_task(job: Job, part: SequencePart, name: str) -> Opened:
    """List a sequence, open its videos, cut it into chunks."""
    return open_part(job, part)


@step(DOWNLOAD)
def download_task(job: Job, opened: Opened, first: int, stop: int, name: str) -> list[ChunkState]:
    """Bring the frames of a piece's chunks to this machine."""
    return [download_chunk(job, chunk, opened.listed) for chunk in opened.chunks[first:stop]]


@step(DETECT)
def detect_task(job: Job, states: Sequence[ChunkState], name: str) -> list[ChunkState]:
    """Find the boxes of a piece's frames."""
    return [detect_chunk(job, state) for state in states]


@step(SEGMENT)
def segment_task(job: Job, states: Sequence[ChunkState], name: str) -> list[ChunkState]:
    """Make the masks of a piece's boxes."""
    return [segment_chunk(job, state) for state in states]


@step(CHECK)
def check_task(
    job: Job, opened: Opened, pieces: Sequence[Sequence[ChunkState]], name: str
) -> SequenceOutcome:
    """Check a sequence's labels and declare it complete."""
    return check_sequence(job, opened, [state for piece in pieces for state in piece])


@step("prepare", of="dataset")
def prepare_task(dataset: str, cameras: Sequence[str], out_uri: str) -> frozenset[str]:
    """Make the dataset ready for loads; returns the manifests that it holds already."""
    from tasks.dataset.record import loaded_manifests
    from tasks.load.prepare import prepare_dataset

    prepare_dataset(dataset, cameras, out_uri)
    return frozenset(loaded_manifests(dataset))


@step(LOAD)
def load_task(
    progress: Progress,
    dataset: str,
    out_uri: str,
    labeled: SequenceOutcome | Manifest | None,
    *,
    loaded: frozenset[str],
    name: str,
) -> Any:
    """Load a sequence's labels into FiftyOne, unless it is not complete or there already."""
    manifest = labeled.manifest if isinstance(labeled, SequenceOutcome) else labeled
    if manifest is None or manifest.version in loaded:
        return None
    done = load_labels(dataset, out_uri, manifest)
    progress.advance(LOAD, manifest.frames)
    return done
