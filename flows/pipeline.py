"""Sequences on their way through the tasks: the one pipeline of `label` and of shards.

A sequence is a chain of Prefect tasks joined by their futures:

    open -> label -> check -> track -> load

where label (download, detect and segment) comes once for each piece of at most eight chunks. The
flow's task runner has a few threads, which take tasks in the order submitted and wait with them for
what they need: so one piece downloads, one has the device and one is written, whatever sequences
they belong to. A task that fails fails its sequence, and what comes after it there is not run.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prefect.futures import PrefectFuture
from prefect.utilities.annotations import opaque, quote

from sam2_core.machine import usable_cores
from sam2_core.machine_errors import causes
from tasks.observe.progress import CHECK, DETECT, DOWNLOAD, LABEL, LOAD, OPEN, SEGMENT, TRACK
from tasks.pipeline.chunk import Job
from tasks.pipeline.device_processes import ProcessDiedError, ProcessKilledError
from tasks.pipeline.open import Opened
from tasks.pipeline.outcome import (
    SequenceOutcome,
    SequencePart,
    complete_before,
    outcome_so_far,
    with_error,
    with_loaded,
)
from tasks.pipeline.passes import OF_COMMAND, Passes, in_passes
from tasks.pipeline.steps import (
    MOST_CHUNKS,
    check_task,
    label_task,
    load_task,
    open_task,
    prepare_task,
    track_task,
)
from tasks.store import quarantine

# Of tasks: pieces that are labeled, one that downloads, and what waits; for as many processes as
# cores may have beside a GPU (tasks/pipeline/device_processes.py).
THREADS = max(8, 2 * usable_cores())
# Sequences that are under way for each process that labels, beside the oldest, and opened beside
# those. A worker's death counts against every one of them.
AHEAD, OPENED_AHEAD = 2, 1

Item = TypeVar("Item")
log = logging.getLogger(__name__)


def given(value: Any) -> Any:
    """Give a value to a task as it is: Prefect would look through every frame of it for futures."""
    return quote(value)


def result_of(future: PrefectFuture[Any]) -> Any:
    """Give a task's result to another one, which then comes after it in the run's graph."""
    return opaque(future)


@dataclass
class Run:
    """What the sequences of a run share.

    Attributes:
        job: for every step.
        dataset: FiftyOne dataset, None where none is wanted.
        prepared: gives what the dataset holds already, once it can be written to.
        sizes: chunks of the next piece. The first are small, so that the device begins early.

    """

    job: Job
    dataset: str | None = None
    prepared: PrefectFuture[frozenset[str]] | None = None
    sizes: Iterator[int] = field(
        default_factory=lambda: itertools.chain((1, 1, 2, 4), itertools.repeat(MOST_CHUNKS))
    )


class Chain:
    """The tasks of one sequence.

    Args:
        run: what it shares with the others.
        part: the sequence. Its first task is submitted at once, the others by `submit`.

    """

    def __init__(self, run: Run, part: SequencePart) -> None:
        self._run, self.part = run, part
        self._tasks: list[tuple[str, PrefectFuture[Any]]] = []
        self._opened: Opened | None = None
        if part.manifest is None:
            self._add(OPEN, open_task.submit(given(run.job), given(part), part.name))

    def _add(self, stage: str, future: PrefectFuture[Any]) -> Any:
        """Remember a task; returns what the next one is to be given."""
        self._tasks.append((stage, future))
        return result_of(future)

    def submit(self) -> Chain:
        """Submit what comes after opening; nothing when that failed."""
        if self.part.manifest is not None:
            complete = complete_before(self.part)
            self._load(complete if self.part.tracked else self._track(given(complete)))
            return self
        opening = self._tasks[0][1]
        opening.wait()
        if not opening.state.is_completed():
            return self
        self._opened = opening.result()
        job, name, opened = given(self._run.job), self.part.name, result_of(opening)
        pieces = []
        for first, stop, piece in self._pieces(len(self._opened.chunks)):
            pieces.append(self._add(LABEL, label_task.submit(job, opened, first, stop, piece)))
        checked = self._add(CHECK, check_task.submit(job, opened, pieces, name))
        self._load(self._track(checked))
        return self

    @property
    def frames(self) -> int | None:
        """How many frames it has, labeled by now or not; None when it is not open."""
        if self._opened is None:
            return None
        complete = self._opened.part.manifest
        if complete:
            return complete.frames
        return sum(len(chunk.frames) for chunk in self._opened.chunks)

    def _pieces(self, chunks: int) -> Iterator[tuple[int, int, str]]:
        """First chunk, the one after the last, and name of every piece."""
        first = 0
        while first < chunks:
            stop = min(first + next(self._run.sizes), chunks)
            whole = (first, stop) == (0, chunks)
            yield first, stop, self.part.name if whole else f"{self.part.name} {first}-{stop}"
            first = stop

    def _track(self, outcome: Any) -> Any:
        """Submit the tracking where it is wanted; returns what the next task is to be given."""
        if not self._run.job.tracks:
            return outcome
        job, name = given(self._run.job), self.part.name
        return self._add(TRACK, track_task.submit(job, outcome, name))

    def _load(self, outcome: Any) -> None:
        run = self._run
        if not run.dataset or not run.prepared:
            return
        if isinstance(outcome, SequenceOutcome):
            if _holds(run.prepared, outcome):
                return
            outcome = given(outcome)
        self._add("prepare", run.prepared)
        loading = load_task.submit(
            given(run.job.tools),
            run.dataset,
            run.job.out_uri,
            outcome,
            loaded=result_of(run.prepared),
            name=self.part.name,
        )
        self._add(LOAD, loading)

    def outcome(self) -> SequenceOutcome:
        """Wait for the end of the sequence, tell it, and sum it up."""
        results: dict[str, list[Any]] = {}
        outcome: SequenceOutcome
        failed: tuple[str, Exception] | None = None
        for stage, future in self._tasks:
            future.wait()
            if future.state.is_completed():
                results.setdefault(stage, []).append(future.result())
            elif failed is None:
                failed = stage, future.result(raise_on_failure=False)
        if TRACK in results:
            (outcome,) = results[TRACK]
        elif self.part.manifest is not None:
            outcome = complete_before(self.part)
        elif CHECK in results:
            (outcome,) = results[CHECK]
        else:
            states = (state for piece in results.get(LABEL, ()) for state in piece)
            failures = self._opened.failures if self._opened else ()
            outcome = outcome_so_far(self.part.name, states, failures)
        for loaded in filter(None, results.get(LOAD, ())):
            outcome = with_loaded(outcome, loaded)
        if failed:
            stage, error = failed
            outcome = with_error(outcome, _stage_of(stage, error), error)
        if self._opened and self._opened.attempt_uri and not (failed and _killed(failed[1])):
            quarantine.end(self._opened.attempt_uri)
        self._run.job.tools.progress.finish(self.part.name, outcome.text, good=outcome.good)
        return outcome


def _stage_of(task: str, error: Exception) -> str:
    """Return the stage in which a task failed."""
    if task == LABEL:
        noted = {note for one in causes(error) for note in getattr(one, "__notes__", ())}
        return next((one for one in (DETECT, SEGMENT) if one in noted), DOWNLOAD)
    return LOAD if task == "prepare" else task


def _killed(error: Exception) -> bool:
    """Whether a sequence ended two processes, the second one alone: as if it had been a worker."""
    return isinstance(error, ProcessDiedError) and not isinstance(error, ProcessKilledError)


def _holds(prepared: PrefectFuture[frozenset[str]], outcome: SequenceOutcome) -> bool:
    """Whether the dataset holds these labels; if nobody knows it does not."""
    prepared.wait()
    if not (prepared.state.is_completed() and outcome.manifest):
        return False
    return outcome.manifest.version in prepared.result()


def label_sequences(
    job: Job,
    parts: Sequence[SequencePart],
    dataset: str | None = None,
    cameras: Sequence[str] = (),
    *,
    passes: Passes = OF_COMMAND,
    on_open: Callable[[int, int], object] = lambda *_: None,
) -> list[SequenceOutcome]:
    """Label and load sequences, in a flow run; those that failed for a temporary reason again.

    Retrying a request has a limit of seconds; a run lives for minutes and can wait for storage to
    come back. After a request to stop no further sequence is begun; when the device is lost, the
    others fail with that before they are listed.

    Args:
        job: for every step.
        parts: the sequences.
        dataset: FiftyOne dataset to load them into.
        cameras: every camera of the dataset.
        passes: how often to try at most, and what.
        on_open: called with a part's number and how many frames it turned out to have.

    Returns:
        The outcomes of those that were begun, in order.

    """
    run = Run(job, dataset)

    def attempt(todo: Sequence[int]) -> dict[int, SequenceOutcome]:
        if dataset and (run.prepared is None or run.prepared.state.is_failed()):
            # FiftyOne takes seconds to import: behind the first chunks, not before them.
            tools = given(job.tools)
            run.prepared = prepare_task.submit(tools, dataset, list(cameras), job.out_uri)
        outcomes = {}
        for number, chain in zip(todo, _chains(run, (parts[one] for one in todo)), strict=False):
            if chain.frames is not None:
                on_open(number, chain.frames)
            outcomes[number] = chain.outcome()
        return outcomes

    tools = job.tools
    return in_passes(
        attempt, len(parts), passes, lambda: not tools.stop.requested and tools.lost is None
    )


def _chains(run: Run, parts: Iterable[SequencePart]) -> Iterator[Chain]:
    """Chains with all their tasks submitted, a few at a time."""
    begun = (Chain(run, part) for part in parts if not run.job.tools.stop.requested)
    submitted = (chain.submit() for chain in ahead(begun, OPENED_AHEAD))
    processes = run.job.tools.processes
    return ahead(submitted, AHEAD * (processes.count if processes else 1))


def ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Hand on the oldest item when `count` more have been taken."""
    waiting: deque[Item] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting
