"""`autolabel label`: plan, say what will be done, run the flow, say what was done."""

import contextlib
import contextvars
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from flows.cli.commands import Command
from flows.cli.common_options import dry_run_option, json_option, print_json
from flows.cli.display import as_typed, showing, shown_of, spinning, stderr_console, stop_moving
from flows.cli.options import LABEL_FIRST, label_options, label_params
from flows.label_sequences import label_sequences
from flows.params import LabelParams
from flows.pipeline import Threads
from flows.plan.decide import why_kept
from flows.plan.plan import Plan, begin, check_writable, make_plan
from flows.plan.summary import summary_of, tracks_told
from flows.server.api import api_that_runs, use_quietly
from sam2_core.cache import cache_folder, make_folder
from tasks.dataset.database import ensure_database, release_database
from tasks.masks.model import BUNDLED, NOT_CHECKED, verdict_on
from tasks.observe.progress import DETECT, DOWNLOAD, LOAD, SEGMENT
from tasks.passed_over import passed_over_lines
from tasks.pipeline.device_processes import ready
from tasks.pipeline.outcome import SequenceOutcome, complete_before
from tasks.pipeline.run_context import RunContext
from tasks.processes import handling
from tasks.store.private_files import remove_abandoned
from tasks.wording import counted

SHOW_CURSOR = "\x1b[?25h"


RESUMABLE = "stopped; finished labels are kept, and the same command continues"


def run_label(
    params: LabelParams,
    context: RunContext | None = None,
    *,
    plan: Plan | None = None,
    stopped: str = RESUMABLE,
) -> dict[str, Any]:
    """Do what the parameters say, with bars on stderr; returns the summary.

    Where a Prefect server is configured or `autolabel up` runs, the steps are tasks of the flow
    `label`, which its page shows; else threads of this process do them, without a server.

    Args:
        params: of the run.
        context: its own when None.
        plan: where it was made already, with a context of its own.
        stopped: what Ctrl-C or SIGTERM says; "" where they are Python's own.

    Raises:
        AutolabelError: nothing could be started (missing source, unusable model, ...).

    """
    console, started = stderr_console(), time.perf_counter()
    with contextlib.ExitStack() as beside:
        beside.enter_context(stopping_at_once(console, stopped))
        with spinning(console, "looking for sequences"):
            plan = plan or make_plan(params, context)
            check_writable(params.out)  # what is refused before leaves no folder
            job = plan.job
            if not plan.is_small:
                beside.enter_context(ready(job))
            begin(params, plan.names, plan.again)
        remove_abandoned(
            params.out, job.stamp.run_key, [sequence.sequence_id for sequence in plan.sequences]
        )
        announce(console, plan)
        printed = _left_aside(plan)
        stages = [DOWNLOAD, DETECT, SEGMENT, *([LOAD] if params.dataset_name else [])]
        shown = showing(console, job.context.progress, stages, plan.frames_to_label)
        outcomes = _nothing_to_do(plan)
        if outcomes is None and api_that_runs():
            summary = _under_prefect(console, plan, shown)
        else:
            if outcomes is None:
                with Threads() as threads, shown:
                    if params.dataset_name:  # what fails here fails again where it is used
                        threads.submit("database", "", ensure_database)
                    outcomes = label_sequences(job, plan.sequences, threads.submit, plan.cameras)
            summary = summary_of(plan, outcomes, time.perf_counter() - started)
    summary["seconds"]["total"] = round(time.perf_counter() - started, 3)
    conclude(console, summary)
    _say_left_aside(console, [line for line in _left_aside(plan) if line not in printed])
    return summary


def _under_prefect(
    console: Console, plan: Plan, shown: AbstractContextManager[None]
) -> dict[str, Any]:
    with spinning(console, "starting"):
        use_quietly()
        flow = importlib.import_module("flows.label")  # seconds
    from prefect import tags

    from flows.server.prefect_runs import TAG

    with tags(TAG), shown:
        state = flow.label_flow(plan)(plan.job.params, return_state=True)
    summary: dict[str, Any] | Exception = state.result(raise_on_failure=False)
    if isinstance(summary, Exception):
        raise summary
    return summary


def leave_overlays(summary: dict[str, Any], count: int) -> list[str]:
    """Draw labels over some pictures of a run; returns where they are."""
    from tasks.export.run import overlays_uri, write_overlays

    console, out, run_key = stderr_console(), summary["out"], summary["run_key"]
    with spinning(console, "drawing"):
        drawn = write_overlays(out, run_key, count)
    text = "no overlays: no frame has both a picture and labels"
    if drawn:
        text = (
            f"{counted(len(drawn), 'picture')} with the labels drawn on, to look at: "
            f"[bold]{escape(overlays_uri(out, run_key))}[/]"
        )
    console.print(text)
    return drawn


def stopping_at_once(console: Console, stopped: str = RESUMABLE) -> AbstractContextManager[None]:
    """Have Ctrl-C or SIGTERM end the command at once, with these words, inside the block.

    Every finished chunk is whole, and an unfinished one is not there. Without words they are
    Python's own.
    """

    def stop(number: int, _: object) -> None:
        for ending in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C would say all of it again
            signal.signal(ending, lambda *_: None)  # Python reports one that SIG_IGN overtakes
        # Python refuses to nest a write in another one of this thread, which the signal may have
        # interrupted: straight to the descriptor.
        with contextlib.suppress(RuntimeError):
            stop_moving()
        os.write(2, f"{SHOW_CURSOR if console.is_terminal else ''}\n{stopped}\n".encode())
        if "flows.server.lost_runs" in sys.modules:  # as of every flow
            from flows.server.cancelling import CANCEL_S, cancel_current

            # On a thread, which locks that the signal has met cannot hold up for ever.
            telling = threading.Thread(
                target=contextvars.copy_context().run, args=(cancel_current,), daemon=True
            )
            telling.start()
            telling.join(2 * CANCEL_S)
        release_database()
        os._exit(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM) if stopped else ()
    return handling(stop, *numbers)


def _nothing_to_do(plan: Plan) -> list[SequenceOutcome] | None:
    """Return the outcomes of a plan whose every sequence is labeled, tracked and loaded."""
    if plan.missing or (
        plan.job.params.tracks and any(sequence.tracks_made is None for sequence in plan.sequences)
    ):
        return None
    if plan.job.params.dataset_name:
        from tasks.dataset.schema import loaded_manifests

        loaded = loaded_manifests(plan.job.params.dataset_name)
        if any(
            sequence.manifest and sequence.manifest.version not in loaded
            for sequence in plan.sequences
        ):
            return None
    return [complete_before(sequence) for sequence in plan.sequences]


def announce(console: Console, plan: Plan) -> None:
    """Say what will be labeled, and with what."""
    stamp, done = plan.job.model.stamp, len(plan.sequences) - len(plan.missing)
    whole = len(plan.sequences) + len(plan.kept)
    console.print(
        f"[bold]{len(plan.missing)}[/] of {counted(whole, 'sequence')} to label"
        + (f", {done} up to date" if done else "")
    )
    if plan.replaced:
        console.print(
            f"[yellow]{plan.replaced} of them have labels, of other frames or made otherwise: "
            "datasets and exports will show the new ones instead[/]"
        )
    if plan.again:
        console.print(
            f"[yellow]{len(plan.again)} of those up to date had been labeled otherwise since: "
            "datasets and exports will show these labels again[/]"
        )
    if plan.kept:
        console.print(f"[bold]{len(plan.kept)}[/] kept: {why_kept(sum(plan.kept.values()))}")
    console.print(
        f"masks  {escape(stamp.name)} on {stamp.backend}, {stamp.precision} "
        f"[dim]({escape(plan.job.model.reason)})[/]"
    )
    if plan.job.params.follow and plan.job.model.backend == "onnxruntime-cpu":
        console.print("       [yellow]--follow takes some 10 s a frame on a CPU[/]")
    if plan.job.params.allow_uncertified:
        verdict = verdict_on(plan.job.model)
        words = f"its certificate says: {verdict}" if verdict != NOT_CHECKED else verdict
        console.print(f"       [yellow]--allow-uncertified: {words}; every label says so[/]")
    roads = plan.job.params.wanted_classes != plan.job.params.classes == ()
    only = "; classes on roads, --classes all takes every one" if roads else ""
    more = "" if plan.matching else f" [dim](detected; yours are used with --boxes only{only})[/]"
    console.print(f"boxes  {escape(plan.job.stamp.detector)}{more}")
    _offer_models(console, plan)
    _say_left_aside(console, _left_aside(plan))


def _offer_models(console: Console, plan: Plan) -> None:
    """Name better models, once on a machine, where bundled ones are taken by default."""
    names = plan.job.model.stamp.name, plan.job.stamp.detector
    bundled = all(map(str.startswith, names, (BUNDLED, "compact@")))
    given = cache_folder() / "hints" / "models"
    if plan.job.params.model != "auto" or not bundled or given.exists():
        return
    with contextlib.suppress(OSError):  # then it is said again
        make_folder(given.parent)
        given.touch()
    console.print(
        "       these models are small, `tiny` and `yolox_s` learned from far more "
        f"photographs: {escape(as_typed('models', 'download', 'tiny', 'yolox_s'))}"
    )


def _left_aside(plan: Plan) -> list[str]:
    """Say which imported boxes and frames do not fit, and what is not read at all."""
    matching = plan.matching.lines() if plan.matching else ()
    return [*matching, *passed_over_lines(plan.passed_over)]


def _say_left_aside(console: Console, lines: Sequence[str]) -> None:
    for line in shown_of(console, lines):
        console.print(f"       [yellow]{escape(line)}[/]")


def _say_failed(console: Console, failed: Sequence[dict[str, Any]]) -> None:
    """Say which frames and sequences failed, and why."""
    previous = None
    for failure in shown_of(console, failed):
        reason = "for the same reason" if failure["reason"] == previous else failure["reason"]
        previous = failure["reason"]
        name = failure.get("uri", "").rpartition("/")[2]
        frame = " ".join(filter(None, (failure["sequence"], failure.get("camera"), name)))
        console.print(f"  [red]{escape(frame)}[/] {failure['stage']}: {escape(reason)}")


def conclude(console: Console, summary: dict[str, Any]) -> None:
    """Say what was done, what failed, and what to do next."""
    failed, rejected = summary["failed"], counted(summary["rejected"], "box", "boxes")
    console.print(
        f"[bold]{counted(summary['frames'], 'frame')}[/] and "
        f"[bold]{counted(summary['instances'] - summary['rejected'], 'mask')}[/] "
        + (
            f"({summary['followed']} of them followed, as `source` says) "
            if summary["followed"]
            else ""
        )
        + f"in {counted(summary['sequences'], 'sequence')}"
        + (
            f", [yellow]{rejected} without a mask[/] (why: reports/{summary['run_key']}/)"
            if summary["rejected"]
            else ""
        )
        + (f", {counted(summary['skipped'], 'frame')} labeled before" if summary["skipped"] else "")
        + (f", [red]{len(failed)} failed[/]" if failed else "")
        + f", {summary['seconds']['total']:.1f} s"
    )
    for line in tracks_told(summary):
        console.print(escape(line))
    _say_failed(console, failed)
    if failed:
        console.print("put right what failed and run the same command again: the rest is kept")
    if summary["left_out"]:
        frames = counted(summary["left_out"], "labeled frame")
        console.print(
            f"[yellow]left out of the dataset: {frames} of pictures that have changed since; "
            "run the same command again[/]"
        )
    if summary["nothing"]:
        console.print(f"[red]{escape(summary['nothing'])}[/]")
    failed_sequences = {failure["sequence"] for failure in failed if "uri" not in failure}
    if summary["dataset"] and summary["frames"] and len(failed_sequences) < summary["sequences"]:
        console.print(f"look at it: [bold]{escape(as_typed('review', summary['dataset']))}[/]")


def dry_run(params: LabelParams) -> dict[str, Any]:
    """Say what a run would do, and do nothing; returns the summary that it would start with."""
    console, started = stderr_console(), time.perf_counter()
    plan = make_plan(params)
    announce(console, plan)
    for sequence in plan.sequences:
        state = "up to date" if sequence.manifest else "to label"
        # Those of videos are not known.
        size = f", {counted(sequence.planned, 'frame')}" if sequence.planned else ""
        console.print(f"  {escape(sequence.sequence_id)}: {state}{size}")
    outcomes = [complete_before(sequence) for sequence in plan.sequences if sequence.manifest]
    summary = summary_of(plan, outcomes, time.perf_counter() - started)
    _say_failed(console, summary["failed"])  # before: the exit code has its reason above
    nothing = "" if plan.missing else summary["nothing"]  # what is missing may have masks
    if nothing:
        console.print(f"[red]{escape(nothing)}[/]")
    return summary | {
        "dry_run": True,
        "nothing": nothing,
        "sequences": len(plan.sequences),
        "to_label": [sequence.sequence_id for sequence in plan.missing],
        "frames_to_label": plan.frames_to_label,
    }


@click.command(cls=Command, first=f"{LABEL_FIRST} overlays dry_run as_json")
@label_options
@click.option("--sequence", metavar="NAME", help="What to call the one sequence of SOURCE.")
@click.option(
    "--overlays", type=click.IntRange(0), default=0, metavar="N",
    help="Draw labels over N pictures of all that is labeled alike in --out, beside the reports.",
)  # fmt: skip
@dry_run_option
@json_option
def command(overlays: int, as_json: bool, **values: Any) -> None:
    """Label all sequences in SOURCE.

    A SOURCE is a folder of images, a folder of camera folders, a video, or a folder of these, on
    this machine or under an s3:// or https:// URL; a picture; a quoted pattern of any of these;
    @FILE for a list, one per line; or - for a list on stdin.

    Frames that are labeled already are not labeled again. Exit code 0: all labeled; 1: some frames
    or sequences failed, or there was nothing to label; 2: bad usage; 130: stopped by Ctrl-C.
    """
    is_dry = values.pop("dry_run")
    params = label_params(values)
    summary = dry_run(params) if is_dry else run_label(params)
    if overlays and not is_dry:
        summary["overlays"] = leave_overlays(summary, overlays)
    print_json(as_json, summary)
    sys.exit(1 if summary.get("failed") or summary.get("nothing") else 0)
