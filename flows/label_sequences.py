"""Sequences through the pipeline: a few at a time, and again those that failed for a while."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flows.pipeline import Handle, Submit, do_now, run_sequence
from sam2_core.machine import usable_cores
from sam2_core.machine_errors import causes
from tasks.observe.progress import DETECT, DOWNLOAD, LABEL, OPEN, SEGMENT
from tasks.pipeline.device_processes import ProcessDiedError, ProcessKilledError
from tasks.pipeline.load import prepare_dataset
from tasks.pipeline.open import Opened
from tasks.pipeline.outcome import (
    SequenceOutcome,
    SequencePart,
    complete_before,
    outcome_so_far,
    with_error,
)
from tasks.pipeline.run_context import Job
from tasks.store import quarantine
from tasks.wording import counted

# Of tasks: pieces that are labeled, one that downloads, and what waits; for as many processes as
# cores may have beside a GPU (tasks/pipeline/device_processes.py).
THREADS = max(8, 2 * usable_cores())
# Sequences under way for each process, besides the oldest; one more is opened in advance. If the
# worker dies, that counts against all of them.
AHEAD, OPENED_AHEAD = 2, 1
# Chunks of a run's pieces: the first are small, so that the device begins early. A task run costs
# Prefect's server up to 0.1 s of CPU, whatever it does.
FIRST_SIZES, SIZE = (1, 1, 2, 4), 8
FIRST_PAUSE_S = 5.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retry:
    """How often sequences are tried in a run.

    Attributes:
        again: whether a sequence is tried again.
        patience: how many `FIRST_PAUSE_S` the first pause takes; the next one takes twice as long.
        most: tries of a sequence.

    """

    again: Callable[[SequenceOutcome], bool]
    patience: float = 1.0
    most: int = 3


# A shard lives for minutes: what could not be fetched may be there at its end.
OF_SHARD = Retry(lambda one: one.worth_another_try)
# Somebody waits for it: only where servers are busy, and for these a minute.
OF_COMMAND = Retry(lambda one: one.met_busy_server, patience=4.0)


class SequenceRun:
    """A sequence under way: its steps, of which those in `tasks` are submitted."""

    def __init__(self, number: int, part: SequencePart, job: Job) -> None:
        self.number, self.part, self._job = number, part, job
        self.tasks: list[tuple[str, Handle]] = []
        self._error: Exception | None = None

    @contextlib.contextmanager
    def failing_alone(self) -> Iterator[None]:
        """Let what cannot be submitted fail this sequence, and no other."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one sequence fails, not the run
            self._error = error

    @property
    def frames(self) -> int | None:
        """How many frames it has, labeled by now or not; None when it was not opened."""
        with contextlib.suppress(Exception):
            opened = self.tasks[0][1].result() if self.tasks else None
            return opened.frames if isinstance(opened, Opened) else None
        return None

    def outcome(self) -> SequenceOutcome:
        """Wait for its end, report it, and sum it up."""
        results: list[tuple[str, Any]] = []
        failed: tuple[str, Exception] | None = None
        for stage, task in self.tasks:
            try:
                results.append((stage, task.result()))
            except Exception as error:  # noqa: BLE001 - the first is the sequence's
                failed = failed or (stage, error)
        if self._error:
            failed = failed or (OPEN, self._error)
        opened = next((one for _, one in results if isinstance(one, Opened)), None)
        states = [state for stage, one in results if stage == LABEL for state in one]
        outcomes = [one for _, one in results if isinstance(one, SequenceOutcome)]
        if outcomes:
            outcome = outcomes[-1]
        elif self.part.manifest is not None:
            outcome = complete_before(self.part)
        else:
            outcome = outcome_so_far(self.part.name, states, opened.failures if opened else ())
        if failed:
            outcome = with_error(outcome, _stage_of(*failed), failed[1])
        if opened and opened.attempt_uri and not (failed and _killed(failed[1])):
            quarantine.end(opened.attempt_uri)
        self._job.context.progress.finish(self.part.name, outcome.text, good=outcome.good)
        return outcome


def _stage_of(task: str, error: Exception) -> str:
    """Return the stage in which a task failed."""
    if task == LABEL:
        noted = {note for one in causes(error) for note in getattr(one, "__notes__", ())}
        return next((one for one in (DETECT, SEGMENT) if one in noted), DOWNLOAD)
    return task


def _killed(error: Exception) -> bool:
    """Whether the sequence killed a second process while alone in it."""
    return isinstance(error, ProcessDiedError) and not isinstance(error, ProcessKilledError)


def label_sequences(
    job: Job,
    parts: Sequence[SequencePart],
    submit: Submit,
    cameras: Sequence[str] = (),
    *,
    prepared: Handle | None = None,
    retry: Retry = OF_COMMAND,
    on_open: Callable[[int, int], object] = lambda *_: None,
) -> list[SequenceOutcome]:
    """Label and load sequences; those that failed for a temporary reason again.

    Retrying a request has a limit of seconds; a run lives for minutes and can wait for storage to
    come back. After a request to stop no further sequence is started; when the device is lost, the
    others fail with that before they are listed.

    Args:
        job: for every step.
        parts: the sequences.
        submit: as `run_sequence` takes it.
        cameras: every camera of the dataset.
        prepared: the dataset's preparation, where it is submitted already.
        retry: how often to try at most, and what.
        on_open: called with a part's number and how many frames it turned out to have.

    Returns:
        The outcomes of those that were started, in order.

    """
    context, outcomes = job.context, dict[int, SequenceOutcome]()
    sizes = itertools.chain(FIRST_SIZES, itertools.repeat(SIZE))
    processes = context.processes.count if context.processes else 1
    ahead = 0 if submit is do_now else AHEAD * processes
    todo = list(range(len(parts)))
    for tried in range(1, retry.most + 1):
        if job.dataset and (prepared is None or (tried > 1 and _has_failed(prepared))):
            # FiftyOne takes seconds to import: behind the first chunks, not before them.
            prepared = submit("prepare", job.dataset, prepare_dataset, job, list(cameras))
        waiting, submitted = deque(todo), deque[SequenceRun]()
        opened = deque[tuple[SequenceRun, Iterator[tuple[str, Handle]]]]()
        while waiting or opened or submitted:
            if context.stop.is_set():
                waiting.clear()
            if waiting and len(opened) <= min(ahead, OPENED_AHEAD):
                number = waiting.popleft()
                one = SequenceRun(number, parts[number], job)
                steps = run_sequence(job, one.part, submit, sizes, prepared)
                opened.append((one, steps))
                with one.failing_alone():
                    one.tasks += itertools.islice(steps, 1)
            elif opened and len(submitted) <= ahead:
                one, steps = opened.popleft()
                submitted.append(one)
                with one.failing_alone():
                    one.tasks += steps
                if (frames := one.frames) is not None:
                    on_open(one.number, frames)
            else:
                one = submitted.popleft()
                outcomes[one.number] = one.outcome()
        todo = [one for one in todo if one in outcomes and retry.again(outcomes[one])]
        if not todo or tried == retry.most or context.stop.is_set() or context.lost:
            break
        _pause(retry, tried, len(todo))
    return [outcomes[one] for one in sorted(outcomes)]


def _has_failed(prepared: Handle) -> bool:
    try:
        prepared.result()
    except Exception:  # noqa: BLE001 - the sequences that needed it have told
        return True
    return False


def _pause(retry: Retry, tried: int, failed: int) -> None:
    jitter = random.uniform(1, 1.2)  # noqa: S311 - workers are not to come back all at once
    pause_s = FIRST_PAUSE_S * retry.patience * 2 ** (tried - 1) * jitter
    log.warning("%s failed for now; trying again in %.0f s", counted(failed, "sequence"), pause_s)
    time.sleep(pause_s)
