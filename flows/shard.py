"""The flow `label-shard`: what one GPU worker does in one go, its engine warm in the process."""

from __future__ import annotations

import os
import time
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.backfill_plan import refuse_other_run
from flows.give_back import give_back
from flows.label import THREADS
from flows.planning import Plan, job_of, stamp_of
from flows.run_artifacts import publish, shard_progress
from flows.shard_pipeline import label_pieces
from flows.shards import ShardParams
from flows.submit import MOST_STARTS
from flows.summary import summary_of
from tasks import metrics_server, stopping, tracing
from tasks.model import choose_model

tracing.install()  # Prefect's span of the flow run begins before the flow's own code


@flow(
    name="label-shard",
    description="Label the sequences of one shard on this worker.",
    task_runner=ThreadPoolTaskRunner(max_workers=THREADS),  # type: ignore[arg-type]
    persist_result=False,
)
def label_shard(params: ShardParams) -> Any:
    """Label every piece; ends Failed, with the reasons, when some sequence is not complete.

    On SIGTERM the chunk at hand is finished and the shard is given back to the queue.
    """
    started = time.perf_counter()
    if flow_run.run_count > MOST_STARTS:
        return Failed(message=f"its workers died {MOST_STARTS} times: not started again by itself")
    model = choose_model(params.label.model, params.label.backend)
    stamp = stamp_of(params.label, model)
    refuse_other_run(params, stamp.run_key)
    plan = Plan(params.label, stamp, model, ())
    with stopping.on_sigterm(), metrics_server.serving():
        outcomes = label_pieces(job_of(plan), params, shard_progress(params))
        if stopping.requested():
            if give_back():
                get_run_logger().warning("asked to stop: the shard goes back to the queue")
                os._exit(0)  # the run is Scheduled again: nothing here may report another state
            return Cancelled(message="cancelled; what is labeled stays")
    summary = summary_of(plan, outcomes, time.perf_counter() - started)
    publish(summary)
    incomplete = [one for one in outcomes if one.error]
    text = f"{summary['frames']} frames, {summary['instances']} masks"
    if incomplete:
        first = incomplete[0]
        text += f", {len(incomplete)} sequences failed: {first.sequence_id}: {first.error}"
        return Failed(message=text[:1000])
    return Completed(message=text)
