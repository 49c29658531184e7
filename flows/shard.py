"""The flow `label-shard`: what one GPU worker does in one go, its engine warm in the process."""

import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prefect import flow, get_run_logger
from prefect.exceptions import Abort
from prefect.runtime import flow_run
from prefect.states import Cancelled, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.label_sequences import label_sequences
from flows.machine.programs import tie_to_parent
from flows.machine.self_test import have_tested
from flows.pipeline import THREADS
from flows.plan.plan import Plan, job_of, model_of
from flows.plan.shards import ShardParams
from flows.plan.summary import summary_of
from flows.prefect_tasks import submit_step
from flows.server.artifacts import frames_counted, publish
from flows.server.fleet import refuse_unless_offered
from flows.server.given_back import give_back, pause_after
from flows.server.lost_runs import signs_of_life
from flows.server.prefect_runs import MOST_STARTS
from flows.server.run_ends import ending
from sam2_core.trust.certify import UncertifiedEngineError
from sam2_core.types import AutolabelError
from tasks.dataset.schema import refuse_before_labeling
from tasks.errors import error_text, redacted_errors
from tasks.observe import metrics_server, tracing
from tasks.pipeline.device_processes import ready
from tasks.pipeline.outcome import (
    SequenceOutcome,
    is_absent_server,
    is_this_machines,
)
from tasks.processes import WORKER_VARIABLE, collect_seldom, handling
from tasks.store import quarantine
from tasks.store.storage import StorageError
from tasks.wording import counted

tracing.install()  # Prefect's span of the flow run begins before the flow's own code


@flow(
    name="label-shard",
    description="Label the sequences of one shard on this worker.",
    task_runner=ThreadPoolTaskRunner(max_workers=THREADS),  # type: ignore[arg-type]
    persist_result=False,
)
def label_shard(params: ShardParams) -> Any:
    """Label every piece; ends Failed, with the reasons, when some sequence is not complete.

    Labels that could not be loaded into the dataset fail nothing: the state's message says so.

    On SIGTERM the chunk at hand is finished and the shard is given back to the queue. So it is, for
    a while, where this machine fails: another worker takes it, or this one when it is well.
    """
    for name in ("flows", "tasks", "sam2_core"):  # Prefect's extra loggers have no level of theirs
        logging.getLogger(name).setLevel(logging.INFO)
    collect_seldom()  # its worker waits for this process's end
    if WORKER_VARIABLE in os.environ:  # its worker was killed: the next one gets the device
        tie_to_parent(signal.SIGKILL)
    with redacted_errors(), signs_of_life():
        try:
            return _label_shard(params)
        except Exception as error:
            if is_absent_server(error):
                hand_on(error_text(error))
            elif is_this_machines(error) and not isinstance(error, UncertifiedEngineError):
                machine_failed(error_text(error))
            raise


def _label_shard(params: ShardParams) -> Any:
    started = time.perf_counter()
    if flow_run.run_count > MOST_STARTS:
        why = f"started {MOST_STARTS} times; its workers died or gave it back: not started again"
        return Failed(message=f"{why} by itself")
    model = model_of(params.label)
    refuse_unless_offered(model.backend, model.precision)
    job = replace(job_of(params.label, model=model), counts_attempts=True)
    stamp, context = job.stamp, job.context
    if params.run_key != stamp.run_key:
        raise AutolabelError(
            f"this shard was planned as run {params.run_key}, but this worker's model, detector "
            f"and parameters make run {stamp.run_key}: give every worker the same model files and "
            "version"
        )
    refuse_before_labeling(params.label.dataset_name, params.label.out)
    with (
        handling(lambda *_: context.stop.set(), signal.SIGTERM),
        ready(job),
        metrics_server.serving(context.progress),
        frames_counted("shard", params.frames) as count,
        context.progress.listening(count),
    ):
        outcomes = label_sequences(
            job,
            params.pieces,
            submit_step,
            params.cameras,
            in_shard=True,
        )
        if context.lost is not None:
            machine_failed(str(context.lost))
        if context.stop.is_set():
            if give_back("its worker was stopped"):
                get_run_logger().warning("asked to stop: the shard goes back to the queue")
                raise Abort("the shard is scheduled again")
            return Cancelled(message="cancelled; what is labeled stays")
        # The machine's first.
        for outcome in sorted(outcomes, key=lambda outcome: outcome.server_absent):
            if outcome.for_another_worker:
                why = f"{outcome.sequence_id}: {outcome.error}"
                hand_on(why) if outcome.server_absent else machine_failed(why)
    summary = summary_of(Plan(job, ()), outcomes, time.perf_counter() - started)
    publish(summary)
    given_up = note_failures(params, outcomes, str(flow_run.id))
    text = f"{counted(summary['frames'], 'frame')}, {counted(summary['instances'], 'mask')}"
    return ending(outcomes, text, given_up, params.label.dataset_name)


def machine_failed(why: str) -> None:
    """Have this machine tested before its worker takes more, and give the shard back.

    Raises:
        Abort: the shard was given back.

    """
    have_tested()  # before anything that takes time
    hand_on(why)


def hand_on(why: str) -> None:
    """Give the shard back for what this machine cannot do now, unless it was started too often.

    Nothing of this try is counted against its sequences, and nothing that is labeled is done again.

    Raises:
        Abort: it was given back: the flow run ends here.

    """
    starts = flow_run.run_count
    pause = pause_after(starts)
    if starts < MOST_STARTS and give_back(why, pause):
        get_run_logger().error(
            "the shard goes back to the queue for %.0f s: %s", pause.total_seconds(), why
        )
        raise Abort("the shard is scheduled again")


def note_failures(shard: ShardParams, outcomes: Sequence[SequenceOutcome], run_id: str) -> int:
    """Count what could not be completed, so that it is not tried for ever; returns how many are
    given up with this run.

    While storage is away, nothing works: that is no sequence's fault, and neither is what this
    machine failed at.
    """  # noqa: D205
    works = any(outcome.frames for outcome in outcomes)
    keys = {piece.sequence_id: piece.key for piece in shard.pieces}
    given_up = 0
    for outcome in outcomes:
        alone = len(outcomes) == 1 and not outcome.transient and not outcome.partial
        if outcome.incomplete and not outcome.machine and (works or alone or outcome.hopeless):
            case = quarantine.Case(shard.label.out, shard.run_key, *keys[outcome.sequence_id])
            try:
                given_up += quarantine.note_failure(
                    case, run_id, outcome.incomplete, final=outcome.hopeless
                )
            except StorageError as error:  # the next run that fails at it notes so
                get_run_logger().warning("%s: not counted: %s", outcome.sequence_id, error)
    return given_up
