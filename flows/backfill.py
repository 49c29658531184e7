"""The flow `backfill`: plan from storage, submit what is missing as shards, once each."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from flows.params import BackfillParams
from flows.plan.backfill import BackfillPlan, plan_backfill
from flows.plan.plan import begin
from flows.plan.rows import plan_markdown
from flows.prefect_tasks import patiently, submit_step
from flows.server.artifacts import dated, run_name, short_sources
from flows.server.client import connected
from flows.server.fleet import decided, submit, turn_of, workers_online
from flows.server.lost_runs import signs_of_life
from flows.server.prefect_runs import sequences_in_flight
from tasks.errors import redacted_errors
from tasks.frames.naming import Names
from tasks.store import quarantine
from tasks.wording import counted


@flow(
    name="backfill",
    flow_run_name=dated("backfill"),
    description="Label what is missing below the sources.",
    persist_result=False,
)
def backfill(params: BackfillParams) -> dict[str, Any]:
    """Submit a shard for everything that is not up to date and not under way.

    Returns the plan with `submitted`, the number of new shards, and `met`, of planned sequences
    that another submission had meanwhile.
    """
    with redacted_errors(), signs_of_life():
        plan = planned(params)
        with connected() as client:
            name = f"{flow_run.name}, {counted(plan.sequences, 'sequence')}"
            client.update_flow_run(UUID(flow_run.id), name=name)
        submitted: dict[str, int] = submit_step("submit", "", submit_plan, plan).result()
        return plan.as_json() | submitted


def planned(params: BackfillParams) -> BackfillPlan:
    """Plan as a step of a flow, whose page shows the plan."""
    step = submit_step("plan", "", patiently, partial(plan_in_flight, params), "planning")
    plan: BackfillPlan = step.result()
    key = plan.stamp.run_key
    create_markdown_artifact(plan_markdown(plan), key="backfill-plan", description=key)
    get_run_logger().info("%s", plan.as_json())
    return plan


def plan_in_flight(params: BackfillParams) -> BackfillPlan:
    """Plan a backfill beside the shards that are already under way."""
    params = params.model_copy(update={"label": decided(params.label)})
    plan = plan_backfill(params, partial(sequences_in_flight, out_uri=params.label.out))
    if plan.works:
        plan.workers = len(workers_online())
    return plan


def submit_plan(
    plan: BackfillPlan, on_submitted: Callable[[], object] = lambda: None
) -> dict[str, int]:
    """Submit a plan's shards.

    What another submission has submitted since it was planned is left out, and the rest cut anew.

    Labels of frames that are there again, and were others meanwhile, are the newest from now on.

    Returns how many shards were `submitted`, and of how many sequences another was `met`.
    """
    params, run_key = plan.params, plan.stamp.run_key
    begin(params.label, plan.survey.names if plan.sequences else Names(), plan.again)
    if not plan.shards:
        return {"submitted": 0, "met": 0}
    with turn_of(run_key, params.label.out):
        keys = {work.key for work in plan.works}
        met = keys & sequences_in_flight(run_key, params.label.out)
        if params.retry_quarantined:  # workers begin them again
            for key in quarantine.given_up(params.label.out, run_key).keys() & (keys - met):
                quarantine.release(quarantine.Case(params.label.out, run_key, *key))
        shards = (
            plan.cut([work for work in plan.works if work.key not in met]) if met else plan.shards
        )
        submit(shards, _name_of(plan), on_submitted=on_submitted)
    return {"submitted": len(shards), "met": len(met)}


def _name_of(plan: BackfillPlan) -> str:
    """Name of the night or the backfill that submits, after which its shards are named."""
    if root := flow_run.root_flow_run_id:
        with connected() as client:
            return client.read_flow_run(UUID(root)).name
    name = run_name("backfill", short_sources(plan.params.label.sources))
    return f"{name}, {counted(plan.sequences, 'sequence')}"
