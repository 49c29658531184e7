"""A sequence on its way through the tasks, and the stages that push it along.

Each stage is a generator over sequences that submits tasks and hands on the oldest sequence only
when a few more are under way: so the next sequence downloads while this one is segmented, and the
last one is checked and loaded behind it. A sequence whose task failed is handed on with its error.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from prefect.futures import PrefectFuture

from flows.planning import SequencePlan
from flows.summary import SequenceOutcome
from sam2_core.types import AutolabelError
from tasks import progress
from tasks.chunk import Job, Labeled, detect_task, download_task, segment_task
from tasks.retry import is_transient
from tasks.sequence import (
    Closed,
    NotFetchedError,
    Opened,
    UnreadableError,
    check_task,
    load_task,
    local_frames_task,
    open_task,
)


@dataclass
class InFlight:
    """One sequence: its pending tasks, what they gave, and the first error."""

    plan: SequencePlan
    started: float = field(default_factory=time.perf_counter)
    pending: list[PrefectFuture[Any]] = field(default_factory=list)
    upstream: dict[UUID, tuple[PrefectFuture[Any], ...]] = field(default_factory=dict)
    opened: Opened | None = None
    labeled: list[Labeled] = field(default_factory=list)
    closed: Closed | None = None
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
            except Exception as raised:  # noqa: BLE001 - one bad sequence never kills a run
                if not self.error:
                    error = self._cause(future) or raised
                    self.error, self.stage = reason_of(error), stage
                    self.transient = is_transient(error) or isinstance(error, NotFetchedError)
                    self.hopeless = isinstance(error, UnreadableError)
        self.pending = []
        return values

    def _cause(self, future: PrefectFuture[Any]) -> Exception | None:
        """Return what failed before a task: Prefect says of the task itself that it never ran."""
        for earlier in self.upstream.get(future.task_run_id, ()):
            try:
                earlier.result()
            except Exception as error:  # noqa: BLE001 - told as the sequence's error
                return error
        return None


def reason_of(error: Exception) -> str:
    """Return what a person needs to know: our own messages say it all, others need their type."""
    return str(error) if isinstance(error, AutolabelError) else f"{type(error).__name__}: {error}"


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


def submit_open(job: Job, chunk_frames: int, item: InFlight) -> None:
    """Open a sequence that is not complete."""
    if item.plan.manifest is None:
        item.pending = [open_task.submit(job, item.plan.found, chunk_frames, item.name)]


def submit_chunks(job: Job, item: InFlight) -> None:
    """Download, detect and segment every chunk of an opened sequence."""
    for opened in item.results("open"):
        submit_chunks_of(job, opened, item)


def submit_chunks_of(job: Job, opened: Opened, item: InFlight) -> None:
    """Download, detect and segment these chunks."""
    item.opened = opened
    for chunk in opened.chunks:
        first = chunk.frames[0]
        name = "/".join(filter(None, (item.name, first.camera, str(first.index))))
        fetched = download_task.submit(job, chunk, name)
        # Prefect hands a task the result of a future that it is given.
        detected = detect_task.submit(job, fetched, name)  # type: ignore[call-overload]
        segmented = segment_task.submit(job, detected, name)
        item.upstream[segmented.task_run_id] = (fetched, detected)
        item.pending.append(segmented)


def submit_check(job: Job, item: InFlight) -> None:
    """Check and close a sequence whose chunks are all there."""
    item.labeled = item.results("label")
    if item.opened and not item.error:
        item.pending = [check_task.submit(job, item.opened, item.labeled, item.name)]
    elif item.plan.manifest is not None:
        plan = item.plan
        item.closed = Closed(plan.manifest, plan.failures, 0, {})  # type: ignore[arg-type]


def submit_load(
    job: Job, dataset: str | None, prepared: PrefectFuture[set[str]] | None, item: InFlight
) -> None:
    """Load a complete sequence into FiftyOne, unless it is there.

    `prepared` gives what the dataset holds already, once it is ready to be written to.
    """
    for closed in item.results("check"):
        item.closed = closed
    if not dataset or not prepared or not item.closed:
        return
    item.pending = [prepared]
    loaded = item.results("load")
    if not loaded:
        return
    if item.opened:
        frames: Any = [frame for one in item.labeled for frame in one.frames]
    elif item.closed.manifest.version in loaded[0]:
        return
    else:
        frames = local_frames_task.submit(item.plan.found, item.name)
    item.pending = [load_task.submit(job, dataset, item.closed.manifest, frames, item.name)]


def outcome_of(item: InFlight) -> SequenceOutcome:
    """Wait for the end of a sequence, tell it, and sum it up."""
    for seconds in item.results("load"):
        item.load_seconds = seconds
    if item.closed:
        failures, records = item.closed.failures, item.closed.manifest.chunks
        computed = item.closed.computed_frames
    else:
        failures = tuple(failure for one in item.labeled for failure in one.failures)
        records = tuple(one.record for one in item.labeled)
        computed = sum(
            one.record.frames - one.record.failed for one in item.labeled if one.computed
        )
    spent = (
        item.closed.seconds if item.closed else progress.summed(one.seconds for one in item.labeled)
    )
    outcome = SequenceOutcome(
        item.name,
        frames=sum(record.frames - record.failed for record in records),
        instances=sum(record.instances for record in records),
        computed_frames=computed,
        failures=failures,
        error=item.error,
        stage=item.stage,
        partial=item.closed is not None and item.closed.manifest.partial,
        transient=item.transient,
        hopeless=item.hopeless or (item.closed is not None and item.closed.hopeless),
        seconds=spent | item.load_seconds,
    )
    progress.finish(item.name, outcome.text(time.perf_counter() - item.started), good=outcome.good)
    return outcome
