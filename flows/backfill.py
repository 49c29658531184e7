"""The flow `backfill`: plan from storage, submit what is missing as shards, once each."""

from collections.abc import Callable
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from flows.backfill_params import BackfillParams
from flows.pipeline import given, result_of
from flows.plan.backfill import BackfillPlan, plan_backfill
from flows.plan.plan_table import plan_markdown
from flows.server.fleet import decided
from flows.server.shard_runs import sequences_in_flight
from flows.server.submit import ensure_queue, submit, workers_online
from tasks.errors import redacted_errors
from tasks.pipeline.steps import step
from tasks.store import quarantine

PRIORITY, ORDINARY = 1, 10


@flow(name="backfill", description="Label what is missing below the sources.", persist_result=False)
def backfill(params: BackfillParams) -> dict[str, Any]:
    """Submit a shard for everything that is not up to date and not under way.

    Returns the plan with `submitted`, the number of new shards, and `met`, of shards that another
    submission had already made.
    """
    with redacted_errors():
        planned = plan_task.submit(given(params))
        plan: BackfillPlan = planned.result()
        get_run_logger().info("%s", plan.as_json())
        return plan.as_json() | submit_task.submit(result_of(planned)).result()


@step("plan", of="")
def plan_task(params: BackfillParams) -> BackfillPlan:
    """Compare sources with labels."""
    plan = plan_in_flight(params)
    key = plan.stamp.run_key
    create_markdown_artifact(plan_markdown(plan), key="backfill-plan", description=key)
    return plan


@step("submit", of="")
def submit_task(plan: BackfillPlan) -> dict[str, int]:
    """Submit the plan's shards."""
    return submit_plan(plan)


def plan_in_flight(params: BackfillParams) -> BackfillPlan:
    """Plan a backfill beside the shards that are already under way."""
    params = params.model_copy(update={"label": decided(params.label)})
    plan = plan_backfill(params)
    if not plan.works:
        return plan
    taken = sequences_in_flight(plan.stamp.run_key, params.label.out)
    if taken & {(work.sequence_id, work.content_key) for work in plan.works}:
        plan = plan_backfill(params, taken)
    plan.cut(len(workers_online()))
    return plan


def submit_plan(
    plan: BackfillPlan, on_submitted: Callable[[], object] = lambda: None
) -> dict[str, int]:
    """Submit a plan's shards to the work queue that its concurrency and priority ask for.

    Returns how many were `submitted`, and `met` because another submission had already made them.
    """
    if not plan.shards:
        return submit([])
    params = plan.params
    if params.retry_quarantined:
        _release(plan)
    queue = None
    if params.max_concurrency or params.priority:
        name = f"{'priority' if params.priority else 'backfill'}-{plan.stamp.run_key[:8]}"
        priority = PRIORITY if params.priority else ORDINARY
        queue = ensure_queue(name, priority=priority, concurrency_limit=params.max_concurrency)
    return submit(plan.shards, queue=queue, on_submitted=on_submitted)


def _release(plan: BackfillPlan) -> None:
    """Forget why sequences of the plan were given up, so that workers begin them again."""
    out_uri, run_key = plan.params.label.out, plan.stamp.run_key
    given_up = quarantine.listed(out_uri, run_key)
    wanted = {(one.sequence_id, one.content_key) for shard in plan.shards for one in shard.pieces}
    for sequence_id, content_key in given_up & wanted:
        quarantine.release(quarantine.Case(out_uri, run_key, sequence_id, content_key))
