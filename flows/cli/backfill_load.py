"""What a backfill says and does about labels that are there and not in the dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from flows.plan.backfill import BackfillPlan
from flows.server import loading
from tasks.wording import counted

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

POLL_S = 2.0


def tell_lacked(console: Console, plan: BackfillPlan) -> list[str]:
    """Print what would be loaded; return the ids of the sequences that this machine can see."""
    label = plan.params.label
    names = _without_works(plan, loading.lacked(label, plan.stamp.run_key) or set())
    if names:
        console.print(f"{escape(_lacks(plan, names))} and would be loaded")
    return names


def submit(console: Console, plan: BackfillPlan) -> tuple[list[str], FlowRun | None]:
    """Have loaded what is labeled and not in the dataset; returns it, and the flow run of it."""
    label, run_key = plan.params.label, plan.stamp.run_key
    names = _without_works(plan, loading.to_load(label, run_key))
    if not names or not label.dataset_name:
        return [], None
    run = loading.submit_load(label.dataset_name, label.out, run_key)
    console.print(f"{escape(_lacks(plan, names))}: [bold]{escape(run.name)}[/] loads it")
    return names, run


def await_end(console: Console, run: FlowRun) -> list[dict[str, str]]:
    """Wait for a load; return what failed, in the form of a backfill's shards.

    A load that nobody is there for is not waited for.
    """
    pool, workers = loading.loaders_online()
    if not workers:
        reason = f"no worker of pool {pool} is online: `autolabel worker --pool {pool} --count 1`"
        return [{"shard": run.name, "state": "Scheduled", "reason": reason}]
    with console.status(f"loading: {escape(run.name)}"):
        state = loading.await_load(run.id, POLL_S)
    if state.is_completed():
        return []
    return [{"shard": run.name, "state": state.name or "", "reason": state.message or ""}]


def _without_works(plan: BackfillPlan, names: set[str]) -> list[str]:
    """Leave out what is to be labeled: its shards load it."""
    return sorted(names - {work.sequence_id for work in plan.works})


def _lacks(plan: BackfillPlan, names: list[str]) -> str:
    return f"{plan.params.label.dataset_name} lacks {counted(len(names), 'labeled sequence')}"
