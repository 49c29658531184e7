"""Running the label flow from a terminal: plan, say what will be done, run, say what was done."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from flows.cli.display import as_typed, showing, spinning, stderr_console, stop_moving
from flows.cli.label_small import is_small, label_small
from flows.params import LabelParams
from flows.plan.plan import Plan, check_writable, job_of, make_plan
from flows.plan.summary import labeled_by_other, summary_of, tracks_told
from flows.server.api import Api, configured_api
from tasks.masks.certified import NOT_CHECKED, verdict_on
from tasks.observe.progress import DETECT, DOWNLOAD, LOAD, SEGMENT
from tasks.pipeline.chunk import Job
from tasks.pipeline.outcome import SequenceOutcome, complete_before
from tasks.pipeline.stopping import handling
from tasks.pipeline.tools import Tools
from tasks.pipeline.warm import warmed
from tasks.store.private_files import remove_abandoned
from tasks.types import FrameRef
from tasks.wording import counted


@dataclass(frozen=True)
class GivenUp:
    """What a run says and does that Ctrl-C or SIGTERM ends.

    Attributes:
        said: what became of its labels.
        clean_up: removes what goes with it.

    """

    said: str = "stopped; finished labels are kept, and the same command continues"
    clean_up: Callable[[], object] = lambda: None


def run_label(
    params: LabelParams,
    tools: Tools | None = None,
    *,
    dry_run: bool = False,
    as_json: bool = False,
    overlays: int = 0,
    given_up: GivenUp | None = None,
) -> dict[str, Any]:
    """Plan and run; prints to stderr, and with `as_json` one object to stdout.

    Args:
        params: of the run.
        tools: its own when None.
        dry_run: plan and say only.
        as_json: print the summary.
        overlays: pictures to leave beside the reports.
        given_up: what Ctrl-C says and does; by default that what is labeled is kept.

    Raises:
        AutolabelError: nothing could be started (missing source, unusable model, ...).

    """
    console = stderr_console()
    started = time.perf_counter()
    if dry_run:
        summary = _dry_run(console, params)
    else:
        with prefect_if_needed(console, given_up) as api:
            summary = label_with_progress(console, params, api, tools)
        if overlays:
            summary["overlays"] = _leave_overlays(console, summary, overlays)
    summary["seconds"]["total"] = round(time.perf_counter() - started, 3)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    return summary


def _leave_overlays(console: Console, summary: dict[str, Any], count: int) -> list[str]:
    from tasks.export.overlay import overlays_uri, write_overlays

    out, run_key = summary["out"], summary["run_key"]
    with spinning(console, "drawing"):
        drawn = write_overlays(out, run_key, count)
    if drawn:
        pictures, where = counted(len(drawn), "picture"), overlays_uri(out, run_key)
        console.print(f"labels drawn over {pictures}: [bold]{escape(where)}[/]")
    else:
        console.print("no overlays: no frame has both a picture and labels")
    return drawn


@contextlib.contextmanager
def prefect_if_needed(console: Console, given_up: GivenUp | None = None) -> Iterator[Api]:
    """Have a Prefect API in the block, which ends with it; Ctrl-C ends the command there."""
    with Api() as api, _interruptible(console, api, given_up or GivenUp()):
        yield api


def label_with_progress(
    console: Console, params: LabelParams, api: Api, tools: Tools | None = None
) -> dict[str, Any]:
    """Do what the parameters say, with bars; returns the summary.

    Prefect is there for what takes longer than starting it: the flow runs under it.
    """
    started, tools = time.perf_counter(), tools or Tools()
    with spinning(console, "looking for sequences"):
        check_writable(params.out)
        plan = make_plan(params, tools)
        plan.begin()
    remove_abandoned(params.out, plan.stamp.run_key, [one.name for one in plan.sequences])
    announce(console, plan)
    told = set(plan.matching.lines() if plan.matching else ())
    outcomes = _nothing_to_do(plan)
    if outcomes is not None:
        summary = summary_of(plan, outcomes, 0.0)
    elif is_small(plan) and not configured_api():
        job = job_of(plan, tools)
        with _bars(console, plan, job):
            outcomes = label_small(plan, job)
        summary = summary_of(plan, outcomes, time.perf_counter() - started)
    else:
        api.begin()
        job = job_of(plan, tools)
        with warmed(job, plan.params.dataset_name):
            with spinning(console, "starting"):
                importlib.import_module("flows.label")  # seconds, beside the server's start
                api.wait()
            with api.settings():
                summary = _run_flow(console, plan, job)
    conclude(console, summary)
    _say_what_does_not_fit(console, plan, told)
    return summary


SHOW_CURSOR = "\x1b[?25h"


@contextlib.contextmanager
def _interruptible(console: Console, api: Api, given_up: GivenUp) -> Iterator[None]:
    """End at once on Ctrl-C or SIGTERM: every finished chunk is whole, an unfinished one is not."""

    def stop(number: int, _: object) -> None:
        from tasks.dataset.database import release_database

        for one in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C would say all of it again
            signal.signal(one, signal.SIG_IGN)
        try:
            stop_moving()
            console.show_cursor(True)
            console.print(f"\n{given_up.said}")
        except (
            RuntimeError
        ):  # in the middle of a write of this thread, which Python refuses to nest
            os.write(2, f"{SHOW_CURSOR if console.is_terminal else ''}\n{given_up.said}\n".encode())
        api.end()
        release_database()
        given_up.clean_up()
        os._exit(128 + number)

    with handling(stop, signal.SIGINT, signal.SIGTERM):
        yield


def _run_flow(console: Console, plan: Plan, job: Job) -> dict[str, Any]:
    from flows.label import label_flow

    with _bars(console, plan, job):
        summary: dict[str, Any] = label_flow(plan, job)(plan.params)
    return summary


def _bars(console: Console, plan: Plan, job: Job) -> contextlib.AbstractContextManager[None]:
    stages = [DOWNLOAD, DETECT, SEGMENT, *([LOAD] if plan.params.dataset_name else [])]
    return showing(console, job.tools.progress, stages, plan.known_frames)


def _nothing_to_do(plan: Plan) -> list[SequenceOutcome] | None:
    """Return the outcomes of a plan whose every sequence is labeled, tracked and loaded."""
    if plan.missing or (plan.params.tracks and not all(one.tracked for one in plan.sequences)):
        return None
    if plan.params.dataset_name:
        from tasks.dataset.loaded import loaded_manifests

        loaded = loaded_manifests(plan.params.dataset_name)
        if any(one.manifest and one.manifest.version not in loaded for one in plan.sequences):
            return None
    return [complete_before(one) for one in plan.sequences]


def announce(console: Console, plan: Plan) -> None:
    """Say what will be labeled, and with what."""
    stamp = plan.model.stamp
    missing = len(plan.missing)
    done = len(plan.sequences) - missing
    console.print(
        f"[bold]{missing}[/] of {counted(len(plan.sequences), 'sequence')} to label"
        + (f", {done} up to date" if done else "")
    )
    for version, count in plan.unreadable.items():
        console.print(f"       [yellow]{count} of them {escape(labeled_by_other(version))}[/]")
    console.print(
        f"masks  {escape(stamp.name)} on {stamp.backend}, {stamp.precision} "
        f"[dim]({escape(plan.model.reason)})[/]"
    )
    if plan.params.allow_uncertified:
        verdict = verdict_on(plan.model)
        words = f"its certificate says: {verdict}" if verdict != NOT_CHECKED else verdict
        console.print(f"       [yellow]--allow-uncertified: {words}; every label says so[/]")
    roads = plan.params.wanted_classes != plan.params.classes == ()
    more = " [dim](classes on roads; --classes all takes every one)[/]" if roads else ""
    console.print(f"boxes  {escape(plan.stamp.detector)}{more}")
    _say_what_does_not_fit(console, plan)


def _say_what_does_not_fit(console: Console, plan: Plan, told: Collection[str] = ()) -> None:
    """Say which imported boxes and frames do not fit, but for lines that were told before."""
    for line in plan.matching.lines() if plan.matching else ():
        if line not in told:
            console.print(f"       [yellow]{escape(line)}[/]")


def conclude(console: Console, summary: dict[str, Any]) -> None:
    """Say what was done, what failed, and what to do next."""
    failed, rejected = summary["failed"], counted(summary["rejected"], "box", "boxes")
    console.print(
        f"[bold]{counted(summary['frames'], 'frame')}[/] and "
        f"[bold]{counted(summary['instances'] - summary['rejected'], 'mask')}[/] in "
        f"{counted(summary['sequences'], 'sequence')}"
        + (f", [yellow]{rejected} without a mask[/]" if summary["rejected"] else "")
        + (f", {counted(summary['skipped'], 'frame')} from before" if summary["skipped"] else "")
        + (f", [red]{len(failed)} failed[/]" if failed else "")
    )
    for line in tracks_told(summary):
        console.print(escape(line))
    above = None
    for one in failed[:10]:
        reason = "for the same reason" if one["reason"] == above else one["reason"]
        above = one["reason"]
        name = one.get("uri", "").rpartition("/")[2]
        place = " ".join(filter(None, (one["sequence"], one.get("camera"), name)))
        console.print(f"  [red]{escape(place)}[/] {one['stage']}: {escape(reason)}")
    if len(failed) > 10:
        console.print(f"  and {len(failed) - 10} more; --json lists all")
    if summary["left_out"]:
        frames = counted(summary["left_out"], "labeled frame")
        console.print(
            f"[yellow]left out of the dataset: {frames} of pictures that have changed since; "
            "run the same command again[/]"
        )
    if summary["nothing"]:
        console.print(f"[red]{escape(summary['nothing'])}[/]")
    failed_whole = {one["sequence"] for one in failed if "uri" not in one}
    if summary["dataset"] and summary["frames"] and len(failed_whole) < summary["sequences"]:
        command = as_typed("review", summary["dataset"])
        console.print(f"look at it: [bold]{escape(command)}[/]")


def _dry_run(console: Console, params: LabelParams) -> dict[str, Any]:
    plan = make_plan(params)
    announce(console, plan)
    for one in plan.sequences:
        state = "up to date" if one.manifest else "to label"
        frames = sum(isinstance(frame, FrameRef) for frame in one.found.frames)
        size = f", {counted(frames, 'frame')}" if frames else ""  # those of videos are not known
        console.print(f"  {escape(one.found.sequence.sequence_id)}: {state}{size}")
    outcomes = [complete_before(one) for one in plan.sequences if one.manifest]
    summary = summary_of(plan, outcomes, 0.0)
    nothing = "" if plan.missing else summary["nothing"]  # what is missing may have masks
    if nothing:
        console.print(f"[red]{escape(nothing)}[/]")
    return summary | {
        "dry_run": True,
        "nothing": nothing,
        "sequences": len(plan.sequences),
        "to_label": [one.found.sequence.sequence_id for one in plan.missing],
    }
