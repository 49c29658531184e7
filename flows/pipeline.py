"""A sequence on its way through the tasks, and the stages that push it along.

Each stage is a generator over sequences that submits a task and hands on the oldest sequence only
when a few more are under way: so the next sequence downloads while this one is segmented, and the
last one is loaded behind it. A sequence whose task failed is handed on with its error.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prefect.futures import PrefectFuture

from flows.cli.summary import SequenceOutcome
from flows.plan.run import SequencePlan
from tasks.errors import told
from tasks.observe import progress
from tasks.observe.progress import LOAD
from tasks.pipeline.chunk import Job, Labeled
from tasks.pipeline.sequence import (
    Closed,
    LabeledSequence,
    NotFetchedError,
    SequenceError,
    UnreadableError,
    computed_frames,
    label_task,
    load_task,
    local_frames_task,
)
from tasks.store.retry import is_transient


@dataclass
class InFlight:
    """One sequence: its pending tasks, what they gave, and the first error.

    Attributes:
        plan: the sequence.
        started: when it was taken up.
        pending: tasks that were submitted for it.
        done: what became of it when nothing failed; `labeled` are its chunks in any case.
        load_seconds: by stage.
        error: why it failed, and in which `stage`.
        transient: the error may pass by itself.
        hopeless: another attempt is of no use.

    """

    plan: SequencePlan
    started: float = field(default_factory=time.perf_counter)
    pending: list[PrefectFuture[Any]] = field(default_factory=list)
    done: LabeledSequence | None = None
    labeled: tuple[Labeled, ...] = ()
    load_seconds: dict[str, float] = field(default_factory=dict)
    error: str = ""
    stage: str = ""
    transient: bool = False
    hopeless: bool = False

    @property
    def name(self) -> str:
        """Sequence id."""
        return self.plan.found.sequence.sequence_id

    def results(self, stage: str) -> list[Any]:
        """Wait for the pending tasks; what failed becomes this sequence's error."""
        values = []
        for future in self.pending:
            try:
                values.append(future.result())
            except Exception as error:  # noqa: BLE001 - one bad sequence never kills a run
                self._fail(stage, error)
        self.pending = []
        return values

    def _fail(self, stage: str, error: Exception) -> None:
        if isinstance(error, SequenceError):
            stage, self.labeled = error.stage, error.labeled
            error = error.cause
        if not self.error:
            self.error, self.stage = told(error), stage
            self.transient = is_transient(error) or isinstance(error, NotFetchedError)
            self.hopeless = isinstance(error, UnreadableError)


# Sequences that are under way beside the oldest. A worker's death counts against every one of them.
AHEAD = 2

Item = TypeVar("Item", bound=InFlight)


def buffered(items: Iterable[Item], submit: Callable[[Item], None], ahead: int) -> Iterator[Item]:
    """Submit each item's tasks; hand on the oldest when `ahead` more are under way."""
    waiting: deque[Item] = deque()
    for item in items:
        submit(item)
        waiting.append(item)
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


def submit_label(job: Job, chunk_frames: int, item: InFlight) -> None:
    """Label a sequence that is not complete."""
    if item.plan.manifest is None:
        item.pending = [label_task.submit(job, item.plan.found, chunk_frames, item.name)]


def submit_load(
    job: Job, dataset: str | None, prepared: PrefectFuture[set[str]] | None, item: InFlight
) -> None:
    """Load a complete sequence into FiftyOne, unless it is there.

    `prepared` gives what the dataset holds already, once it is ready to be written to.
    """
    plan = item.plan
    for done in item.results("label"):
        item.done, item.labeled = done, done.labeled
    if plan.manifest is not None:
        item.done = LabeledSequence((), Closed(plan.manifest, plan.failures, 0, {}))
    closed = item.done and item.done.closed
    if not dataset or not prepared or not closed:
        return
    item.pending = [prepared]
    loaded = item.results(LOAD)
    if not loaded:
        return
    if plan.manifest is None:
        frames: Any = [frame for one in item.labeled for frame in one.frames]
    elif closed.manifest.version in loaded[0]:
        return
    else:
        frames = local_frames_task.submit(plan.found, item.name)
    item.pending = [load_task.submit(job, dataset, closed.manifest, frames, item.name)]


def outcome_of(item: InFlight) -> SequenceOutcome:
    """Wait for the end of a sequence, tell it, and sum it up."""
    for seconds in item.results(LOAD):
        item.load_seconds = seconds
    closed = item.done.closed if item.done else None
    if closed:
        failures, records = closed.failures, closed.manifest.chunks
        computed, spent = closed.computed_frames, closed.seconds
    else:
        failures = tuple(failure for one in item.labeled for failure in one.failures)
        records = tuple(one.record for one in item.labeled)
        computed = computed_frames(item.labeled)
        spent = progress.summed(one.seconds for one in item.labeled)
    outcome = SequenceOutcome(
        item.name,
        frames=sum(record.frames - record.failed for record in records),
        instances=sum(record.instances for record in records),
        computed_frames=computed,
        failures=failures,
        error=item.error,
        stage=item.stage,
        partial=closed is not None and closed.manifest.partial,
        transient=item.transient,
        hopeless=item.hopeless or (closed is not None and closed.hopeless),
        seconds=spent | item.load_seconds,
    )
    progress.finish(item.name, outcome.text(time.perf_counter() - item.started), good=outcome.good)
    return outcome
