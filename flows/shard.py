"""The flow `label-shard`: what one GPU worker does in one go, its engine warm in the process."""

import time
from collections.abc import Sequence
from typing import Any

from prefect import flow, get_run_logger
from prefect.exceptions import Abort
from prefect.runtime import flow_run
from prefect.states import Cancelled, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.pipeline import THREADS, label_sequences
from flows.plan.backfill import refuse_other_run
from flows.plan.plan import Plan, job_of, model_of, stamp_of
from flows.plan.shards import Piece, ShardParams
from flows.plan.summary import summary_of
from flows.server.fleet import refuse_unless_offered
from flows.server.lost_runs import signs_of_life
from flows.server.progress_artifact import frames_counted
from flows.server.run_artifacts import publish
from flows.server.shard_end import ending
from flows.server.shard_runs import MOST_STARTS, give_back
from sam2_core.types import AutolabelError
from tasks.errors import redacted_errors
from tasks.frames.discover import Discovered, discover
from tasks.observe import metrics_server, tracing
from tasks.pipeline.outcome import SequenceOutcome, SequencePart
from tasks.pipeline.tools import Tools
from tasks.pipeline.warm import warmed
from tasks.store import quarantine
from tasks.types import FrameSelection, SequenceRef
from tasks.wording import counted

PASSES = 3  # tries of a sequence at most, in one run of a shard

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

    On SIGTERM the chunk at hand is finished and the shard is given back to the queue.
    """
    with redacted_errors(), signs_of_life():
        return _label_shard(params)


def _label_shard(params: ShardParams) -> Any:
    started = time.perf_counter()
    if flow_run.run_count > MOST_STARTS:
        return Failed(message=f"its workers died {MOST_STARTS} times: not started again by itself")
    model = model_of(params.label)
    refuse_unless_offered(model.backend, model.precision)
    tools = Tools()
    stamp = stamp_of(params.label, model, tools)
    refuse_other_run(params, stamp.run_key)
    plan = Plan(params.label, stamp, model, ())
    job = job_of(plan, tools, counts_attempts=True)
    planned = [piece.frames for piece in params.pieces]
    with (
        tools.stop.on_sigterm(),
        warmed(job, params.label.dataset_name),
        metrics_server.serving(tools.progress),
        frames_counted(tools, f"shard-{params.key[:12]}", planned) as count,
    ):
        outcomes = label_sequences(
            job,
            parts_of(params),
            params.label.dataset_name,
            params.cameras,
            passes=PASSES,
            on_open=count.opened,
        )
        if tools.lost is not None and give_back():
            get_run_logger().error("%s", tools.lost)
            raise Abort("the device is lost to this process: another one labels the shard")
        if tools.stop.requested:
            if give_back():
                get_run_logger().warning("asked to stop: the shard goes back to the queue")
                raise Abort("the shard is scheduled again")
            return Cancelled(message="cancelled; what is labeled stays")
    summary = summary_of(plan, outcomes, time.perf_counter() - started)
    publish(summary)
    given_up = note_failures(params, outcomes, str(flow_run.id))
    text = f"{counted(summary['frames'], 'frame')}, {counted(summary['instances'], 'mask')}"
    return ending(outcomes, text, given_up, params.label.dataset_name)


def parts_of(shard: ShardParams) -> list[SequencePart]:
    """Return what is to be labeled; every sequence is listed anew when its turn comes.

    Pictures that were named one by one are found as they were when this was planned.
    """
    label = shard.label
    selection = FrameSelection.parse(label.frames)
    named: dict[str, Discovered] = {}
    if any(piece.picked for piece in shard.pieces):
        found = discover(label.sources, selection, label.sequence, label.format)
        named = {one.sequence.sequence_id: one for one in found if one.picked}

    def sequence_of(piece: Piece) -> Discovered:
        if not piece.picked:
            return Discovered(SequenceRef(piece.sequence_id, piece.frames_uri), ())
        if piece.sequence_id not in named:
            raise AutolabelError(f"{piece.sequence_id}: none of its pictures is there any more")
        return named[piece.sequence_id]

    return [
        SequencePart(
            sequence_of(piece),
            selection,
            label.chunk_frames,
            piece.chunks,
        )
        for piece in shard.pieces
    ]


def note_failures(shard: ShardParams, outcomes: Sequence[SequenceOutcome], run_id: str) -> int:
    """Count what could not be completed, so that it is not tried for ever; returns how many are
    given up with this run.

    While storage or the device is away, nothing works: that is no sequence's fault.
    """  # noqa: D205
    works = any(one.frames for one in outcomes)
    keys = {piece.sequence_id: piece.content_key for piece in shard.pieces}
    given_up = 0
    for one in outcomes:
        alone = len(outcomes) == 1 and not one.transient and not one.partial
        if one.incomplete and (works or alone or one.hopeless):
            case = quarantine.Case(
                shard.label.out, shard.run_key, one.sequence_id, keys[one.sequence_id]
            )
            given_up += quarantine.note_failure(case, run_id, one.incomplete, final=one.hopeless)
    return given_up
