"""A backfill from a terminal: the plan, its submission, and watching it to the end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flows.backfill import plan_in_flight, submit_plan
from flows.cli.display import as_typed, stderr_console
from flows.params import BackfillParams
from flows.plan.backfill import BackfillPlan, plan_backfill
from flows.plan.plan import stamp_of
from flows.plan.plan_table import plan_rows
from flows.server import watching
from flows.server.api import use_api
from flows.server.fleet import decided
from flows.server.run_artifacts import failed_frames
from flows.server.shard_end import NOT_LOADED
from flows.server.shard_runs import cancel as cancel_run
from flows.server.shard_runs import counts, runs_of, shard_of
from sam2_core.types import AutolabelError
from tasks.store import manifests
from tasks.wording import counted

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

POLL_S = 5.0


def run_backfill(
    params: BackfillParams, *, dry_run: bool = False, wait: bool = False, cancel: bool = False
) -> dict[str, Any]:
    """Do what the options of `autolabel backfill` say; prints to stderr.

    Returns the plan, with `submitted` and `met` when something was submitted, `cancelled` when it
    was cancelled, and `states`, `failed` and `remaining` when it was waited for.

    Raises:
        AutolabelError: nothing can be planned, or Prefect is not there.

    """
    console = stderr_console()
    if cancel:
        run_key = stamp_of(decided(params.label)).run_key
        cancelled = cancel_run(run_key)
        console.print(
            f"{counted(cancelled, 'shard')} of run {run_key} cancelled; what is labeled stays"
        )
        return {"run_key": run_key, "cancelled": cancelled}
    with console.status("comparing sources and labels"):
        plan = plan_backfill(_as_workers_would(params)) if dry_run else plan_in_flight(params)
    show_plan(console, plan)
    result = plan.as_json()
    if dry_run:
        return result | {"dry_run": True}
    result |= _submit(console, plan)
    if wait and (plan.shards or plan.in_flight):
        result |= watch(console, plan)
    elif plan.shards:
        console.print("follow it: [bold]autolabel status[/]")
    return result


def _as_workers_would(params: BackfillParams) -> BackfillParams:
    """Return the parameters as a submission would decide them; without a Prefect, as here."""
    try:
        use_api()
    except AutolabelError:
        return params.model_copy(update={"label": decided(params.label, {})})
    return params.model_copy(update={"label": decided(params.label)})


def show_plan(console: Console, plan: BackfillPlan) -> None:
    """Print a plan as a table."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in plan_rows(plan):
        table.add_row(f"[dim]{name}[/]", escape(value))
    console.print(table)


def _submit(console: Console, plan: BackfillPlan) -> dict[str, int]:
    if not plan.shards:
        console.print("nothing to submit")
        return submit_plan(plan)
    with _progress(console) as progress:
        bar = progress.add_task("submitting", total=len(plan.shards), states="")
        done = submit_plan(plan, lambda: progress.advance(bar))
    met = f", {done['met']} already under way" if done["met"] else ""
    console.print(f"[bold]{counted(done['submitted'], 'shard')}[/] submitted{met}")
    return done


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[states]}", justify="left"),
        console=console,
        transient=True,
    )


def watch(console: Console, plan: BackfillPlan) -> dict[str, Any]:
    """Show progress until every shard of the run has ended, then say what is left.

    Ctrl-C stops watching; the shards go on.
    """
    run_key, began = plan.stamp.run_key, datetime.now(UTC)
    try:
        _until_ended(console, plan)
    except KeyboardInterrupt:
        console.print(
            "\nno longer watching; the shards go on. `autolabel status` shows them, the same "
            "command with --wait watches again, with --cancel cancels them"
        )
        return {"interrupted": True, "failed": []}
    left, out = plan_backfill(plan.params), plan.params.label.out
    ours = [run for run in runs_of(run_key) if shard_of(run).label.out == out]
    remaining = left.to_label + left.quarantined
    failed = [
        {"shard": run.name, "state": run.state.name or "", "reason": run.state.message or ""}
        for run in ours
        if run.state and _bad(run.state, began, remaining=bool(remaining))
    ]
    color = "green" if not remaining else "red"
    console.print(f"[{color}]{left.up_to_date} of {counted(left.sequences, 'sequence')} labeled[/]")
    for one in failed[:10]:
        console.print(f"  [red]{escape(one['shard'])}[/] {one['state']}: {escape(one['reason'])}")
    just_now = [run for run in ours if run.state and run.state.timestamp >= began]
    frames = failed_frames(
        run_key, {run.id: {piece.sequence_id for piece in shard_of(run).pieces} for run in just_now}
    )
    for one in frames[:10]:
        where = f"{one['uri']}: {one['reason']} (in {one['stage']})"
        console.print(f"  [red]no labels[/] {escape(where)}")
    if len(frames) > 10:
        console.print(f"  and {len(frames) - 10} more; --json lists all")
    if (dataset := plan.params.label.dataset_name) and left.up_to_date:
        command = as_typed("review", dataset)
        console.print(f"look at it: [bold]{escape(command)}[/]")
    return {
        "states": counts(ours),
        "remaining": remaining,
        "failed": failed,
        "failed_frames": frames,
    }


def _bad(state: State[Any], since: datetime, *, remaining: bool) -> bool:
    unloaded = NOT_LOADED in (state.message or "") and state.timestamp >= since
    return unloaded or (remaining and (state.is_failed() or state.is_crashed()))


def _until_ended(console: Console, plan: BackfillPlan) -> None:
    run_key, out_uri = plan.stamp.run_key, plan.params.label.out
    before = len(manifests.list_complete(out_uri, run_key))
    with _progress(console) as progress:
        total = plan.to_label + plan.in_flight
        bar = progress.add_task("sequences", total=total, states="")
        for active in watching.watch(run_key, POLL_S):
            done = len(manifests.list_complete(out_uri, run_key)) - before
            states = (f"{n} {name.lower()}" for name, n in sorted(counts(active).items()))
            progress.update(bar, completed=min(done, total), states=", ".join(states))
