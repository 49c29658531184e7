"""Sequences through the pipeline: a few at a time, and again those that failed for a while."""

import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from flows.pipeline import Handle, Submit, run_sequence
from flows.plan.rates import remember_rate
from sam2_core.machine_errors import causes
from tasks.frames.discover import FoundSequence
from tasks.frames.sources import remember_frames
from tasks.observe.progress import DETECT, DOWNLOAD, LABEL, OPEN, SEGMENT
from tasks.pipeline.device_processes import ProcessDiedError, ProcessKilledError
from tasks.pipeline.outcome import (
    SequenceOutcome,
    complete_before,
    outcome_so_far,
    with_error,
)
from tasks.pipeline.run_context import Job
from tasks.pipeline.sequence import make_dataset_ready
from tasks.store import quarantine, storage
from tasks.wording import counted

# Sequences under way for each process, besides the oldest; one more is opened in advance. If the
# worker dies, that counts against all of them.
UNDER_WAY, OPENED = 2, 1
# Chunks of a run's blocks: the first are small, so that the device begins early. A task run costs
# Prefect's server up to 0.1 s of CPU, whatever it does.
FIRST_SIZES, SIZE = (1, 1, 2, 4), 8
MOST_TRIES = 3
FIRST_PAUSE_S = 5.0  # before the second try; the next pause is twice as long
# Somebody waits for a command: it tries again only where servers are busy, and has a minute for
# these. A shard lives for minutes: what could not be fetched may be there at its end.
COMMAND_PAUSES = 4  # first pauses of a command's first pause
log = logging.getLogger(__name__)
Steps = list[tuple[str, Handle]]  # that are submitted, each with its stage


def _submitted(steps: Iterator[tuple[str, Handle]], most: int | None = None) -> Steps:
    """Submit the next steps of a sequence; what cannot be submitted is a step that fails."""
    submitted: Steps = []
    try:
        submitted.extend(itertools.islice(steps, most))
    except Exception as error:  # noqa: BLE001 - one sequence fails, not the run
        failed = Future[Any]()
        failed.set_exception(error)
        submitted.append((OPEN, failed))
    return submitted


def _outcome_of(job: Job, part: FoundSequence, steps: Steps) -> SequenceOutcome:
    """Wait for the end of a sequence's steps, report it, and sum it up."""
    results: list[tuple[str, Any]] = []
    failures: list[tuple[str, Exception]] = []
    for stage, step in steps:
        try:
            results.append((stage, step.result()))
        except Exception as error:  # noqa: BLE001 - the first is the sequence's
            failures.append((stage, error))
    part = next((result for stage, result in results if stage == OPEN), part)
    outcomes = [result for _, result in results if isinstance(result, SequenceOutcome)]
    if outcomes:
        outcome = outcomes[-1]
    elif part.manifest is not None:
        outcome = complete_before(part)
    else:
        states = [state for stage, block in results if stage == LABEL for state in block]
        outcome = outcome_so_far(part.sequence_id, states, part.failures)
    cause = None
    if failures:
        failed_in, cause = failures[0]
        where = _stage_of_labeling(cause) if failed_in == LABEL else failed_in
        outcome = with_error(outcome, where, cause)
    # Of a process that died it was tried twice, the second time alone in it.
    died = isinstance(cause, ProcessDiedError) and not isinstance(cause, ProcessKilledError)
    if part.attempt_uri and not died:
        quarantine.end(part.attempt_uri)
    job.context.progress.finish(part.sequence_id, outcome.text, good=outcome.good)
    return outcome


def _stage_of_labeling(error: Exception) -> str:
    """Return the stage of labeling that an error comes from, as its notes say."""
    noted = {note for cause in causes(error) for note in getattr(cause, "__notes__", ())}
    return next((stage for stage in (DETECT, SEGMENT) if stage in noted), DOWNLOAD)


def label_sequences(
    job: Job,
    parts: Sequence[FoundSequence],
    submit: Submit,
    cameras: Sequence[str] = (),
    *,
    in_shard: bool = False,
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
        in_shard: whether this is a shard, beside which no person waits.

    Returns:
        The outcomes of those that were started, in order.

    """
    context, outcomes = job.context, dict[int, SequenceOutcome]()
    for part in parts:
        remember_frames(part.frames)
    sizes = itertools.chain(FIRST_SIZES, itertools.repeat(SIZE))
    processes = context.processes.count if context.processes else 1
    under_way = UNDER_WAY * processes
    todo, prepared = list(range(len(parts))), None
    for tried in range(1, MOST_TRIES + 1):
        if job.params.dataset_name:
            # FiftyOne takes seconds to import: behind the first chunks, not before them.
            prepared = submit(
                "prepare", job.params.dataset_name, make_dataset_ready, job, list(cameras)
            )
        waiting, submitted = deque(todo), deque[tuple[int, Steps]]()
        opened = deque[tuple[int, Steps, Iterator[tuple[str, Handle]]]]()
        while waiting or opened or submitted:
            if context.stop.is_set():
                waiting.clear()
            if waiting and len(opened) <= min(under_way, OPENED):
                number = waiting.popleft()
                steps = run_sequence(job, parts[number], submit, sizes, prepared)
                opened.append((number, _submitted(steps, 1), steps))
            elif opened and len(submitted) <= under_way:
                number, first, steps = opened.popleft()
                submitted.append((number, first + _submitted(steps)))
            else:
                number, every = submitted.popleft()
                outcomes[number] = _outcome_of(job, parts[number], every)
        todo = [
            number
            for number, outcome in sorted(outcomes.items())
            if number in todo
            and (outcome.worth_another_try if in_shard else outcome.met_busy_server)
        ]
        if not todo or tried == MOST_TRIES or context.stop.is_set() or context.lost:
            break
        pause_s = FIRST_PAUSE_S * (1 if in_shard else COMMAND_PAUSES) * 2 ** (tried - 1)
        pause_s *= random.uniform(1, 1.2)  # noqa: S311 - workers are not to come back all at once
        log.warning(
            "%s failed for now (%s); trying again in %.0f s",
            counted(len(todo), "sequence"),
            ", ".join(parts[number].sequence_id for number in todo[:10]), pause_s,
        )  # fmt: skip
        time.sleep(pause_s)
    found = [outcomes[number] for number in sorted(outcomes)]
    remember_rate(job.stamp, found, follows=job.params.follow)
    if not in_shard:  # a shard's flow counts all failures
        _note_unreadable(job, parts, found)
    return found


def _note_unreadable(
    job: Job, parts: Sequence[FoundSequence], outcomes: Sequence[SequenceOutcome]
) -> None:
    """Leave a report of each sequence that has no manifest, as nothing of it can be decoded."""
    by_id = {part.sequence_id: part for part in parts}
    for outcome in outcomes:
        if outcome.hopeless and outcome.manifest is None:
            key = by_id[outcome.sequence_id].key
            try:
                case = quarantine.Case(job.params.out, job.stamp.run_key, *key)
                quarantine.note_failure(case, "label", outcome.error, final=True)
            except storage.StorageError as error:
                log.warning("%s: %s", outcome.sequence_id, error)
