"""`autolabel diff`: what two runs over the same frames, or two engines, differ in."""

import tempfile
from pathlib import Path
from typing import Any

import click

from flows.cli.common_options import (
    FOLDER,
    FloatRange,
    check_report,
    json_option,
    print_json,
    refuse,
    sources_option,
)
from flows.cli.display import print_table, results_console, stderr_console, telling
from flows.plan.plan import Plan, make_plan
from sam2_core.backend_choice import BACKENDS, PRECISIONS
from sam2_core.types import AutolabelError
from tasks.evaluate.run_diff import (
    CHANGED,
    CHANGES,
    COLUMNS,
    MARK,
    PAGE,
    Side,
    change_line,
    diff_runs,
    kinds_of,
    not_in_both,
    rows_of,
    uncertified,
    write_report,
)
from tasks.frames.sources import remember_sources
from tasks.wording import counted


@click.command()
@click.argument("run_a")
@click.argument("run_b")
@click.option(
    "--threshold",
    type=FloatRange(0, 1),
    default=0.9,
    help="A mask with a lower IoU counts as changed.",
)
@click.option(
    "--report",
    type=FOLDER,
    help="Write a page, pictures of the largest changes, and lists of what changed.",
)
@click.option(
    "--images",
    metavar="SOURCE",
    help="RUN_A and RUN_B are engines, MODEL[:BACKEND[:PRECISION]]; both label these pictures.",
)
@click.option("--boxes", metavar="PATH", help="With --images: your boxes, as for `label`.")
@click.option(
    "--allow-uncertified",
    is_flag=True,
    help="With --images: accept engines that are not certified; labels and report say so.",
)
@sources_option
@json_option
def command(
    run_a: str,
    run_b: str,
    threshold: float,
    sources: tuple[str, ...],
    report: Path | None,
    images: str | None,
    boxes: str | None,
    allow_uncertified: bool,
    as_json: bool,
) -> None:
    """Show which instances of RUN_A differ in RUN_B, by class and size.

    A run is its --out, or OUT#RUN_KEY if several runs share it. What RUN_A has and RUN_B lacks is a
    change. With --report, changed.txt lists the sequences with changes, for `autolabel backfill
    --sequences @changed.txt`, and changes.jsonl lists every changed instance.

    With --images, RUN_A and RUN_B are two engines: `autolabel diff compact:onnxruntime-cpu
    compact:torch --images canary/`. Each labels the pictures as `label` does. With --report the
    labels stay in its folders a and b and are reused.
    """
    refuse(
        {
            "--boxes goes with --images; a run has its boxes": boxes and not images,
            "--allow-uncertified goes with --images; a run has its labels": (
                allow_uncertified and not images
            ),
        }
    )
    if report:
        check_report(report, PAGE, MARK)
    # Of a report what is there stays whole until there is another.
    with tempfile.TemporaryDirectory(prefix="diff-", dir=report) as scratch:
        if images:
            common = {"sources": (images,), "boxes": boxes, "allow_uncertified": allow_uncertified}
            first, second = _labeled((run_a, run_b), common, report or Path(scratch))
        else:
            first, second = Side.parse(run_a), Side.parse(run_b)
        changes = Path(scratch) / CHANGES
        with (
            changes.open("w", encoding="utf-8") as file,
            telling(stderr_console(), "comparing") as tell,
        ):
            for found, done, total in diff_runs(
                first, second, threshold, lambda change: file.write(change_line(change))
            ):
                last = found
                tell(f"comparing sequences: {done} of {total}")
        if report:
            changes.replace(report / CHANGES)
    result = {"run_a": run_a, "run_b": run_b, **last.result()}
    if report:
        remember_sources(sources)
        write_report(report, result, last)
    if not print_json(as_json, result):
        _print(result, report)


def _print(result: dict[str, Any], report: Path | None) -> None:
    console = results_console()
    print_table(console, COLUMNS, rows_of(result))
    for side in "ab":
        keys = ", ".join(result[f"run_keys_{side}"])
        console.print(f"{side.upper()} is {result[f'run_{side}']}, {keys}", soft_wrap=True)
    for line in (*uncertified(result), *not_in_both(result)):
        console.print(line, style="yellow", soft_wrap=True)
    changed = counted(len(result["changed_sequences"]), "sequence")
    console.print(f"{changed} with a change; changes: {kinds_of(result)}")
    if report:
        console.print(f"report: {report / PAGE}", soft_wrap=True)
    if report and result["changed_sequences"]:
        console.print(
            f"label them again: autolabel backfill SOURCE... --out URL --sequences "
            f"@{report / CHANGED}", soft_wrap=True,
        )  # fmt: skip


def engine_of(text: str) -> dict[str, str]:
    """Read `MODEL[:BACKEND[:PRECISION]]`; a model may have colons itself, as random:tiny."""
    found = {}
    for name, words in (("precision", PRECISIONS), ("backend", BACKENDS)):
        rest, _, last = text.rpartition(":")
        if rest and last in words:
            text, found[name] = rest, last
    return {"model": text, **found}


def _labeled(engines: tuple[str, str], common: dict[str, Any], folder: Path) -> tuple[Side, Side]:
    """Label pictures with both engines, into `a` and `b`; what is there is not made again.

    Args:
        engines: as `engine_of` takes them.
        common: parameters of both runs.
        folder: where the labels go.

    Raises:
        AutolabelError: an engine is not there, may not label here, or labels nothing, or both are
            the same.

    """
    from tasks.masks.model import Segmenters, verdict_on

    plans = [
        _plan(engine_of(one), common, folder / name)
        for one, name in zip(engines, "ab", strict=True)
    ]
    if plans[0].job.stamp.run_key == plans[1].job.stamp.run_key:
        model = plans[0].job.model
        raise AutolabelError(
            f"both engines are the same here: {model.stamp.name} on {model.backend}, "
            f"{model.precision}. Name another as MODEL[:BACKEND[:PRECISION]]"
        )
    for one in plans:  # both, before either of them labels for hours
        model = one.job.model
        certain = model.allow_uncertified or verdict_on(model) == "passed"
        if one.missing and not certain:
            Segmenters().load(model).close()
    first, second = map(_label, plans)
    return first, second


def _plan(engine: dict[str, str], common: dict[str, Any], out: Path) -> Plan:
    from flows.cli.options import validated
    from flows.params import LabelParams

    params = validated(
        LabelParams, **common, **engine, out=str(out), load_dataset=False, tracks=False
    )
    try:
        return make_plan(params)
    except AutolabelError as error:
        if ":" not in params.model or "unknown model" not in str(error):
            raise
        raise AutolabelError(
            f"{error}. An engine is MODEL[:BACKEND[:PRECISION]]; BACKEND is one of "
            f"{', '.join(BACKENDS)}, PRECISION of {', '.join(PRECISIONS)}"
        ) from None


def _label(plan: Plan) -> Side:
    from flows.cli.label import run_label

    params = plan.job.params
    summary = run_label(params, plan=plan)
    if not summary["frames"]:
        reasons = [one["reason"] for one in summary["failed"]]
        why = reasons[0] if reasons else summary["nothing"] or "there is no frame"
        raise AutolabelError(f"{params.model} labeled nothing: {why}")
    # An earlier comparison may have left other sequences there.
    keys = frozenset(one.key for one in plan.sequences)
    return Side(params.out, summary["run_key"], keys)
