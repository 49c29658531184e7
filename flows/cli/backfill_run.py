"""A backfill from a terminal: the plan, its submission, and watching it to the end."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from prefect.client.schemas.objects import State
from rich.console import Console
from rich.markup import escape

from flows.backfill import plan_in_flight, submit_plan
from flows.cli.display import as_typed, clock, print_table, shown_of, stderr_console, telling
from flows.load_dataset import load_dataset
from flows.params import BackfillParams
from flows.plan.backfill import BackfillPlan, look_again, plan_backfill
from flows.plan.plan import check_writable
from flows.plan.rows import plan_rows
from flows.plan.summary import failure_row, unlabeled_frames
from flows.server import fleet, lost_runs
from flows.server.api import use_api
from flows.server.artifacts import percent_done
from flows.server.cancelling import cancel_backfill
from flows.server.client import ServerAwayError, asked_once
from flows.server.fleet import FleetError, as_here, decided
from flows.server.prefect_runs import counted_states, runs_of, sequences_in_flight, shard_of
from flows.server.run_ends import NOT_LOADED
from sam2_core.types import AutolabelError
from tasks.dataset.schema import lacked_sequences
from tasks.store import storage
from tasks.store.manifests import ListedManifest
from tasks.store.private_files import remove_abandoned
from tasks.store.retry import until_answered
from tasks.wording import counted

POLL_S = 5.0
PACE_OVER_S = 300.0  # what is left is told by the pace of the last minutes


def run_backfill(
    params: BackfillParams, *, dry_run: bool = False, wait: bool = False, cancel: bool = False
) -> dict[str, Any]:
    """Do what the options of `autolabel backfill` say; prints to stderr.

    Returns the plan, with `submitted` and `met` when something was submitted, `not_loaded`, ids of
    labeled sequences that the dataset lacked, `cancelled` when it was cancelled, and `states`,
    `failed`, `failed_frames` and `remaining` when it was waited for, or nothing is under way.

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
        plan = _dry_plan(console, params) if dry_run else plan_in_flight(params)
    rows = ((f"[dim]{name}[/]", escape(value)) for name, value in plan_rows(plan))
    print_table(console, (), rows, show_header=False, padding=(0, 2, 0, 0))
    result = plan.as_json()
    if dry_run:
        return result | _show_works(console, plan)
    if params.sequences != "*" and not plan.sequences and not plan.hidden:
        patterns = ", ".join(params.sequences.splitlines()[:3])
        raise AutolabelError(f"no sequence in the sources matches --sequences {patterns}")
    result |= _submit(console, plan)
    result["not_loaded"], result["failed"] = _load_missing(console, plan)
    if wait or not (plan.shards or plan.in_flight):
        result |= watch(console, plan, result["failed"])
    else:
        console.print("follow it: [bold]autolabel status[/]")
    return result


def _show_works(console: Console, plan: BackfillPlan) -> dict[str, Any]:
    """Say which sequences would be labeled and loaded."""
    for work in shown_of(console, plan.works):
        frames = counted(work.planned, "frame")
        console.print(f"  {escape(work.sequence_id)}: to label, {frames}")
    lacked, _ = _load_missing(console, plan, dry_run=True)
    names = [work.sequence_id for work in plan.works]
    return {"dry_run": True, "not_loaded": lacked, "to_label_names": names}


def _dry_plan(console: Console, params: BackfillParams) -> BackfillPlan:
    """Plan like a submission; without a worker that reports its backend, with this machine's."""
    workers = 0
    try:
        use_api()
    except AutolabelError:
        label = as_here(params.label)
    else:
        workers = len(fleet.workers_online())
        try:
            label = decided(params.label)
        except FleetError as error:
            label = as_here(params.label)
            console.print(
                f"[yellow]{escape(str(error))}. Planned as this machine would label, with "
                f"{label.backend} in {label.precision}[/]"
            )
    plan = plan_backfill(params.model_copy(update={"label": label}))
    plan.workers = workers
    return plan


def _submit(console: Console, plan: BackfillPlan) -> dict[str, int]:
    if not plan.shards:
        console.print("nothing to submit")
        return submit_plan(plan)
    out_uri = plan.params.label.out
    if storage.is_local(out_uri):  # workers, and their credentials, may differ
        try:
            check_writable(out_uri)
        except AutolabelError as error:
            console.print(f"[yellow]{escape(str(error))}; make sure that the workers can[/]")
    submitted, total = itertools.count(1), counted(len(plan.shards), "shard")
    with telling(console, f"submitting {total}") as tell:
        done = submit_plan(plan, lambda: tell(f"submitted {next(submitted)} of {total}"))
    met = f", {counted(done['met'], 'sequence')} already under way" if done["met"] else ""
    console.print(f"[bold]{counted(done['submitted'], 'shard')}[/] submitted{met}")
    return done


def _load_missing(
    console: Console, plan: BackfillPlan, *, dry_run: bool = False
) -> tuple[list[str], list[dict[str, str]]]:
    """Load labeled sequences that the dataset lacks; a dry run only prints them.

    Returns their ids, of those that this machine can see, and how the load failed, if it did.
    """
    label, run_key = plan.params.label, plan.stamp.run_key
    # Shards load what they label.
    lacked = lacked_sequences(label.dataset_name, label.out, run_key) or set()
    lacked -= {work.sequence_id for work in plan.works}
    if lacked and not dry_run:
        lacked -= {name for name, _ in sequences_in_flight(run_key, label.out)}
    names = sorted(lacked)
    if not names or not label.dataset_name:
        return [], []
    lacks = escape(f"{label.dataset_name} lacks {counted(len(names), 'labeled sequence')}")
    if dry_run:
        console.print(f"{lacks} and would be loaded")
        return names, []
    with console.status(f"{lacks}: loading"):
        load = load_dataset(
            label.dataset_name, label.out, run_key, sources=label.sources, return_state=True
        )
    state = cast("State[Any]", load)
    return names, [] if state.is_completed() else [_told("load", state)]


def watch(
    console: Console, plan: BackfillPlan, failed_loads: Sequence[dict[str, str]] = ()
) -> dict[str, Any]:
    """Show progress until every shard of the run has ended; then say what is left.

    Ctrl-C stops watching; the shards go on.
    """
    run_key, out_uri, started = plan.stamp.run_key, plan.params.label.out, datetime.now(UTC)

    def warn(text: str) -> None:
        console.print(f"[yellow]{escape(text)}[/]")

    left = plan
    try:
        if plan.shards or plan.in_flight:
            watch_shards(console, plan, warn)
    except KeyboardInterrupt:
        console.print()
        console.print(
            "no longer watching; the shards continue. `autolabel status` shows them, the same "
            "command with --wait watches again, with --cancel cancels them"
        )
        return {"interrupted": True, "failed": []}
    remove_abandoned(out_uri)
    if plan.shards or plan.in_flight:
        left = until_answered(
            lambda: look_again(plan), "checking what is left", warn, lost_runs.PATIENCE_S
        )
    remaining = left.to_label + left.quarantined
    of_run = list(runs_of(run_key, out_uri))
    failed = [
        _told(run.name, run.state)
        for run in of_run
        if run.state
        and (
            (run.state.timestamp >= started and NOT_LOADED in (run.state.message or ""))
            or (remaining and (run.state.is_failed() or run.state.is_crashed()))
        )
    ]
    failed += failed_loads
    partial = [ListedManifest(0.0, run_key, *work.key, partial=True) for work in left.works]
    frames = unlabeled_frames(out_uri, [*left.complete, *partial])
    result = {
        "states": Counter(str(run.state_name) for run in of_run),
        "remaining": remaining, "failed": failed,
        "failed_frames": [failure_row(frame) for frame in frames],
    }  # fmt: skip
    _say_what_is_left(console, left, result)
    return result


def _say_what_is_left(console: Console, left: BackfillPlan, result: dict[str, Any]) -> None:
    color = "red" if result["remaining"] else "green"
    kept = f", {left.kept} kept as people reviewed them" if left.kept else ""
    frames = result["failed_frames"]
    failed = f", [red]{counted(len(frames), 'frame')} without labels[/]" if frames else ""
    sequences = counted(left.sequences, "sequence")
    console.print(f"[{color}]{left.up_to_date} of {sequences} labeled{kept}[/]{failed}")
    for run in shown_of(console, result["failed"]):
        console.print(f"  [red]{escape(run['shard'])}[/] {run['state']}: {escape(run['reason'])}")
    for frame in shown_of(console, frames):
        where = escape(f"{frame['uri']}: {frame['reason']} (in {frame['stage']})")
        console.print(f"  [red]no labels[/] {where}")
    dataset = left.params.label.dataset_name
    if left.up_to_date and dataset and not result["failed"]:
        console.print(f"look at it: [bold]{escape(as_typed('review', dataset))}[/]")


def _told(name: str, state: State[Any]) -> dict[str, str]:
    return {"shard": name, "state": state.name or "", "reason": state.message or ""}


def watch_shards(console: Console, plan: BackfillPlan, warn: Callable[[str], object]) -> None:
    """Show how far it is until all have ended: on a terminal always, in a log now and then.

    The frames that the shards under way report as done count as through.
    """
    run_key, out_uri = plan.stamp.run_key, plan.params.label.out
    about = "about " if plan.frames_estimated else ""
    percent: dict[UUID, float] = {}
    total = done = 0
    looks: deque[tuple[float, int]] = deque(maxlen=round(PACE_OVER_S / POLL_S))
    with telling(console, "watching the shards") as tell:
        for active in lost_runs.watch(run_key, out_uri, POLL_S, warn):
            with contextlib.suppress(ServerAwayError), asked_once():  # the watcher reports it
                percent |= percent_done([run.id for run in active if run.state_name == "Running"])
            shards = {run.id: shard_of(run) for run in active}
            left = sum(
                shard.frames * (1 - percent.get(key, 0) / 100) for key, shard in shards.items()
            )
            total = max(total, round(left))  # shards of other submissions, too
            done = max(done, total - round(left))  # a shard that is lost reports less again
            now = time.monotonic()
            looks.append((now, done))
            first_s, before = looks[0]
            pace_s = (now - first_s) / (done - before) if done > before else 0
            time_left = f", about {clock(pace_s * (total - done))} left" if pace_s else ""
            if active:
                tell(
                    f"{about}{done:,} of {counted(total, 'frame')}{time_left}; "
                    f"shards: {counted_states(Counter(str(run.state_name) for run in active))}"
                )
