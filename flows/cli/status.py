"""`autolabel status`: how runs and shards are doing, and what to do."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from flows.cli.common_options import FloatRange, json_option, print_json
from flows.machine.services import ADVICE, refused_workers
from sam2_core.types import AutolabelError

FRAMES_SHOWN, ANSWER_WITHIN_S = 10, 10.0


@click.command(short_help="Show the state of runs and shards.")
@click.option("--hours", type=FloatRange(0), default=72.0, metavar="H",
              help="Shards submitted in the last H hours.")  # fmt: skip
@json_option
def command(hours: float, as_json: bool) -> None:
    """Show workers, schedules and the next nights, shards by state, failures by reason, throughput,
    what was given up on, and what to do.

    Exit code 1: something is left to do for a person.
    """  # noqa: D205
    from flows.server.api import use_api
    from flows.server.client import asked_once
    from flows.server.status import collect_status

    use_api()
    try:
        with asked_once(ANSWER_WITHIN_S):  # who asks wants to know now
            status = collect_status(hours)
    except AutolabelError:
        if not as_json:  # what ails the server may well ail the workers
            _show_refused(refused_workers())
        raise
    if not print_json(as_json, status):
        _show_all(status, hours)
    todo = [run["to_do"] for run in status["runs"]]
    todo += [schedule["problem"] for schedule in status["schedules"]]
    todo += [status["workers_refused"]]
    sys.exit(1 if any(todo) else 0)


def _show_all(status: dict[str, Any], hours: float) -> None:
    workers = ", ".join(status["workers_online"]) or "none"
    click.echo(f"GPU workers online: {workers}")
    _show_refused(status["workers_refused"])
    for schedule in status["schedules"]:
        _show_schedule(schedule)
    if size := status["database_bytes"]:
        click.echo(f"Prefect's database: {size / 1e6:,.0f} MB")
    for one in status["label_runs"]:
        when = (one["started"] or "not started")[:16].replace("T", " ")
        click.echo(f"{one['name']}: {one['state']}, {when} UTC, to {one['out']}")
    if not status["runs"]:
        click.echo(f"no shards in the last {hours:g} h")
    for run in status["runs"]:
        _show(run)


def _show_refused(reasons: dict[str, str]) -> None:

    for name, reason in reasons.items():
        click.echo(f"{name} takes no work: {reason}")
    if reasons:
        click.echo(f"  to do: {ADVICE}")


def _show_schedule(schedule: dict[str, Any]) -> None:
    state = "on" if schedule["on"] else "off"
    line = f"schedule of {schedule['deployment']}: {schedule['when']}, {state}"
    if schedule["last_run"]:
        moment = _local(schedule["last_run"], schedule)
        line += f", the last run of {moment} {schedule['last_state'].lower()}"
    click.echo(line)
    for moment in schedule["next_runs"]:
        click.echo(f"  planned     {_local(moment, schedule)}")
    if schedule["problem"]:
        click.echo(f"  to do: {schedule['problem']}")


def _local(moment: str, schedule: dict[str, Any]) -> str:
    """Write a time of a schedule as `nightly` does."""
    there = datetime.fromisoformat(moment).astimezone(ZoneInfo(schedule["timezone"]))
    return f"{there:%a %Y-%m-%d %H:%M %Z}"


def _show(run: dict[str, Any]) -> None:
    from flows.server.runs import counted_states

    click.echo(f"\nrun {run['run_key']} to {run['out']}")
    click.echo(f"  shards      {counted_states(run['shards'])}")
    if run["sequences_complete"] is not None:
        click.echo(f"  sequences   {run['sequences_complete']} complete")
    rate = run["frames_per_second_and_worker"]
    if rate is not None:
        click.echo(f"  throughput  {rate:.2f} frames/s of a worker, start and loading included")
    for reason, count in run["failures"].items():
        click.echo(f"  failed {count}x  {reason}")
    for reason, count in run["waiting"].items():
        click.echo(f"  waits  {count}x  {reason}")
    for one in run["failed_frames"][:FRAMES_SHOWN]:
        click.echo(f"  no labels   {one['uri']}: {one['reason']} (in {one['stage']})")
    if len(run["failed_frames"]) > FRAMES_SHOWN:
        click.echo(f"  no labels   {len(run['failed_frames']) - FRAMES_SHOWN} more; --json has all")
    named = [("given up", one) for one in run["quarantined"][:10]]
    named += [("mixed versions", one) for one in run["sequences_of_mixed_versions"][:10]]
    for what, name in named:
        click.echo(f"  {what:<11} {name}")
    for line in run["to_do"]:
        click.echo(f"  to do: {line}")
