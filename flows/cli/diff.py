"""`autolabel diff`: what two runs over the same frames differ in."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli.common_options import FOLDER, FloatRange, json_option
from tasks.wording import counted, one_line

if TYPE_CHECKING:
    from tasks.evaluate.run_diff import Change
    from tasks.evaluate.run_side import Side


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
@json_option
def command(
    run_a: str,
    run_b: str,
    threshold: float,
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
    from flows.cli.display import stderr_console, telling
    from flows.cli.writable import check_report
    from tasks.evaluate.diff_report import FILES, MARK, PAGE, write_report
    from tasks.evaluate.run_diff import diff_runs

    if boxes and not images:
        raise click.UsageError("--boxes goes with --images; a run has its boxes")
    if allow_uncertified and not images:
        raise click.UsageError("--allow-uncertified goes with --images; a run has its labels")
    if report:
        check_report(report, PAGE, MARK, FILES)
    asked = {"images": images, "boxes": boxes, "allow_uncertified": allow_uncertified}
    with (
        _sides(run_a, run_b, asked, report) as sides,
        _noted(report) as note,
        telling(stderr_console(), "comparing") as tell,
    ):
        for found, done, total in diff_runs(*sides, threshold, note):
            last = found
            tell(f"comparing sequences: {done} of {total}")
    result = {"run_a": run_a, "run_b": run_b, **last.result()}
    if report:
        write_report(report, result, last)
    if as_json:
        click.echo(json.dumps(result))
    else:
        _print(result, report)


def _sides(
    run_a: str, run_b: str, asked: dict[str, Any], report: Path | None
) -> contextlib.AbstractContextManager[tuple[Side, Side]]:
    """Return the two runs: those that are named, or those of two engines."""
    from tasks.evaluate.run_side import Side

    if asked["images"] is None:
        return contextlib.nullcontext((Side.parse(run_a), Side.parse(run_b)))
    from flows.cli.diff_engines import labeled

    return labeled((run_a, run_b), asked, report)


@contextlib.contextmanager
def _noted(report: Path | None) -> Iterator[Callable[[Change], object]]:
    """Return a function that writes a change to the report, if there is one."""
    if report is None:
        yield lambda _: None
        return
    from tasks.evaluate.diff_report import CHANGES, change_line

    with tempfile.TemporaryDirectory(dir=report) as place:
        new = Path(place) / CHANGES  # an earlier report is whole until there is another
        with new.open("w", encoding="utf-8") as file:
            yield lambda change: file.write(change_line(change))
        new.replace(report / CHANGES)


def _print(result: dict[str, Any], report: Path | None) -> None:
    from rich.table import Table

    from flows.cli.display import results_console
    from tasks.evaluate.diff_report import (
        CHANGED,
        PAGE,
        figures,
        kinds_of,
        not_in_both,
        uncertified,
    )

    console = results_console()
    table = Table("instances", "count", "changed", "mean IoU", "predicted IoU", box=None)
    for name, one in {"all": result, **result["by_size"], **result["by_class"]}.items():
        table.add_row(one_line(name), *figures(one))
    console.print(table)
    for side in "ab":
        keys = ", ".join(result[f"run_keys_{side}"])
        console.print(f"{side.upper()} is {result[f'run_{side}']}, {keys}", soft_wrap=True)
    for line in (*uncertified(result), *not_in_both(result)):
        console.print(one_line(line), style="yellow", soft_wrap=True)
    changed = counted(len(result["changed_sequences"]), "sequence")
    console.print(f"{changed} with a change; changes: {kinds_of(result)}")
    if report:
        console.print(f"report: {report / PAGE}", soft_wrap=True)
    if report and result["changed_sequences"]:
        console.print(
            f"label them again: autolabel backfill SOURCE... --out URL --sequences "
            f"@{report / CHANGED}", soft_wrap=True,
        )  # fmt: skip
