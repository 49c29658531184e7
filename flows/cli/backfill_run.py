"""A backfill from a terminal: the plan, its submission, and watching it to the end."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flows.backfill import plan_in_flight, submit_plan
from flows.backfill_params import BackfillParams
from flows.cli import backfill_load
from flows.cli.backfill_progress import HowFar
from flows.cli.display import LOG_INTERVAL_S, as_typed, stderr_console
from flows.plan.backfill import BackfillPlan, plan_backfill
from flows.plan.plan import check_writable
from flows.plan.plan_table import plan_rows
from flows.plan.summary import failure_row, unlabeled_frames
from flows.server import watching
from flows.server.api import use_api
from flows.server.artifacts import failed_frames
from flows.server.fleet import UntoldError, as_here, decided
from flows.server.shard_runs import (
    NOT_LOADED,
    cancel_backfill,
    counted_states,
    counts,
    runs_of,
    shard_of,
)
from flows.server.submit import workers_online
from sam2_core.types import AutolabelError
from tasks.store import storage
from tasks.store.private_files import remove_abandoned
from tasks.store.retry import until_answered
from tasks.wording import counted

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

POLL_S = 5.0


def run_backfill(
    params: BackfillParams, *, dry_run: bool = False, wait: bool = False, cancel: bool = False
) -> dict[str, Any]:
    """Do what the options of `autolabel backfill` say; prints to stderr.

    Returns the plan, with `submitted` and `met` when something was submitted, `not_loaded`, ids of
    labeled sequences that the dataset lacked, `cancelled` when it was cancelled, and `states`,
    `failed` and `remaining` when it was waited for.

    Raises:
        AutolabelError: nothing can be planned, or Prefect is not there.

    """
    console = stderr_console()
    if cancel:
        cancelled = cancel_backfill(params.label)
        for run_key, count in cancelled.items():
            console.print(f"{counted(count, 'shard')} of run {run_key} cancelled")
        if not cancelled:
            console.print("no unfinished shard of this backfill; `autolabel status` shows others")
        console.print("what is labeled stays")
        return {"run_keys": list(cancelled), "cancelled": sum(cancelled.values())}
    with console.status("comparing sources and labels"):
        plan = _tried(console, params) if dry_run else plan_in_flight(params)
    show_plan(console, plan)
    result = plan.as_json()
    if dry_run:
        return result | {"dry_run": True, "not_loaded": backfill_load.tell_lacked(console, plan)}
    if params.sequences != "*" and not plan.sequences and not plan.hidden:
        names = ", ".join(params.sequences.splitlines()[:3])
        raise AutolabelError(f"no sequence in the sources matches --sequences {names}")
    if plan.shards:
        _warn_unless_writable(console, params.label.out)
    result |= _submit(console, plan)
    result["not_loaded"], loading = backfill_load.submit(console, plan)
    if wait:
        result |= watch(console, plan, loading)
    elif plan.shards:
        console.print("follow it: [bold]autolabel status[/]")
    return result


def _warn_unless_writable(console: Console, out_uri: str) -> None:
    """Say if a folder cannot be written from here; workers, and their credentials, may differ."""
    if not storage.is_local(out_uri):
        return
    try:
        check_writable(out_uri)
    except AutolabelError as error:
        console.print(f"[yellow]{escape(str(error))}; make sure that the workers can[/]")


def _tried(console: Console, params: BackfillParams) -> BackfillPlan:
    """Plan like a submission; without a worker that reports its backend, with this machine's."""
    workers = 0
    try:
        use_api()
    except AutolabelError:
        label = as_here(params.label)
    else:
        workers = len(workers_online())
        try:
            label = decided(params.label, wait_s=0)
        except UntoldError as error:
            label = as_here(params.label)
            console.print(
                f"[yellow]{escape(str(error))}. Planned as this machine would label, with "
                f"{label.backend} in {label.precision}[/]"
            )
    plan = plan_backfill(params.model_copy(update={"label": label}))
    plan.workers = workers
    return plan


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
    met = f", {counted(done['met'], 'sequence')} already under way" if done["met"] else ""
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
        disable=not console.is_terminal,
    )


def watch(console: Console, plan: BackfillPlan, loading: FlowRun | None = None) -> dict[str, Any]:
    """Show progress until every shard of the run has ended, and `loading`; then say what is left.

    Ctrl-C stops watching; the shards go on.
    """
    run_key, began = plan.stamp.run_key, datetime.now(UTC)
    under_way = plan.shards or plan.in_flight
    try:
        if under_way:
            _until_ended(console, plan)
        unloaded = backfill_load.await_end(console, loading) if loading else []
    except KeyboardInterrupt:
        console.print(
            "\nno longer watching; the shards continue. `autolabel status` shows them, the same "
            "command with --wait watches again, with --cancel cancels them"
        )
        return {"interrupted": True, "failed": []}
    remove_abandoned(plan.params.label.out)
    left = _planned_again(console, plan) if under_way else plan
    gone = sorted({work.sequence_id for work in plan.works} - left.names)
    ours = list(runs_of(run_key, plan.params.label.out))
    remaining = left.to_label + left.quarantined + len(gone)
    failed = [
        {"shard": run.name, "state": run.state.name or "", "reason": run.state.message or ""}
        for run in ours
        if run.state and _bad(run.state, began, remaining=bool(remaining))
    ] + unloaded
    color = "green" if not remaining else "red"
    console.print(f"[{color}]{left.up_to_date} of {counted(left.sequences, 'sequence')} labeled[/]")
    for name in gone[:10]:
        console.print(f"  [red]gone[/] {escape(name)}: it was there at the time of planning")
    for one in failed[:10]:
        console.print(f"  [red]{escape(one['shard'])}[/] {one['state']}: {escape(one['reason'])}")
    just_now = [run for run in ours if run.state and run.state.timestamp >= began]
    frames = failed_frames(
        run_key, {run.id: {piece.sequence_id for piece in shard_of(run).pieces} for run in just_now}
    )
    frames = _with_earlier(frames, left)
    for one in frames[:10]:
        where = f"{one['uri']}: {one['reason']} (in {one['stage']})"
        console.print(f"  [red]no labels[/] {escape(where)}")
    if len(frames) > 10:
        console.print(f"  and {len(frames) - 10} more; --json lists all")
    dataset = plan.params.label.dataset_name
    if left.up_to_date and dataset and not failed:
        command = as_typed("review", dataset)
        console.print(f"look at it: [bold]{escape(command)}[/]")
    return {
        "states": counts(ours),
        "remaining": remaining,
        "gone": gone,
        "failed": failed,
        "failed_frames": frames,
    }


def _planned_again(console: Console, plan: BackfillPlan) -> BackfillPlan:
    """Plan once more, when all have ended; storage may be away for as long as the server may."""

    def tell(text: str) -> None:
        console.print(f"[yellow]{escape(text)}[/]")

    return until_answered(
        lambda: plan_backfill(plan.params), "checking what is left", tell, watching.PATIENCE_S
    )


def _with_earlier(frames: list[dict[str, Any]], left: BackfillPlan) -> list[dict[str, Any]]:
    """Add frames that were found damaged by earlier shards, whose sequences are complete."""
    known = {(one["sequence"], one["uri"]) for one in frames}
    out_uri, run_key = left.params.label.out, left.stamp.run_key
    return frames + [
        failure_row(one)
        for one in unlabeled_frames(out_uri, run_key, left.complete)
        if (one.sequence_id, one.uri) not in known
    ]


def _bad(state: State[Any], since: datetime, *, remaining: bool) -> bool:
    unloaded = NOT_LOADED in (state.message or "") and state.timestamp >= since
    return unloaded or (remaining and (state.is_failed() or state.is_crashed()))


def _until_ended(console: Console, plan: BackfillPlan) -> None:
    """Show how far it is: on a terminal by a bar, in a log every half minute."""
    far = HowFar(plan)
    told = time.monotonic()
    with _progress(console) as progress:
        bar = progress.add_task("sequences", total=far.sequences, states="")

        def tell(text: str) -> None:
            progress.console.print(f"[yellow]{escape(text)}[/]")

        for active in watching.watch(far.run_key, far.out_uri, POLL_S, tell):
            if console.is_terminal:
                states = counted_states(counts(active))
                progress.update(bar, completed=far.labeled(), states=states)
            elif active and time.monotonic() - told >= LOG_INTERVAL_S:
                told = time.monotonic()
                console.print(escape(far.text(active)))
