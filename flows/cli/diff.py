"""`autolabel diff`: what two runs over the same frames differ in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli.common_options import FOLDER, json_option
from tasks.wording import counted

if TYPE_CHECKING:
    from tasks.lab.run_diff import Change, RunDiff

CHANGED = "changed.txt"


@click.command()
@click.argument("run_a")
@click.argument("run_b")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.9, help="A lower IoU is a change."
)
@click.option(
    "--report",
    type=FOLDER,
    help="For the page, pictures of the largest changes, and the list of what changed.",
)
@json_option
def command(run_a: str, run_b: str, threshold: float, report: Path | None, as_json: bool) -> None:
    """Say which instances of RUN_A are other ones in RUN_B, by class and size.

    A run is its --out, or OUT#RUN_KEY where several lie in one storage. With --report, changed.txt
    names exactly the sequences in which anything changed, for `autolabel backfill --sequences
    @changed.txt`.
    """
    from flows.cli.display import stderr_console, telling
    from tasks.lab.run_diff import Side, diff_runs

    with telling(stderr_console(), "comparing") as tell:
        for found, done, total in diff_runs(Side.parse(run_a), Side.parse(run_b), threshold):
            last = found
            tell(f"comparing sequences: {done} of {total}")
    result = {"run_a": run_a, "run_b": run_b, **last.result()}
    if report:
        _write(report, result, last)
    if as_json:
        click.echo(json.dumps(result))
    else:
        _print(result, report)


def _write(folder: Path, result: dict[str, Any], found: RunDiff) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = "".join(f"{name}\n" for name in found.changed_sequences)
    (folder / CHANGED).write_text(names, encoding="utf-8")
    (folder / "diff.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    kinds = ", ".join(f"{count} {kind}" for kind, count in result["by_kind"].items() if count)
    lines = [
        "# What changed", "", f"`{result['run_a']}` and `{result['run_b']}`", "",
        f"{result['frames']} frames, {result['instances']} instances, {result['changed']} changed "
        f"({kinds or 'none'}); {len(found.changed_sequences)} sequences with a change, listed in "
        f"`{CHANGED}`.", "",
    ]  # fmt: skip
    for what in ("by_size", "by_class"):
        lines += ["| | instances | changed | mean IoU | predicted IoU |", "|---|---|---|---|---|"]
        lines += [_row(name, one) for name, one in result[what].items()] + [""]
    lines += ["Green: both. Red: first run only. Blue: second run only.", ""]
    for number, change in enumerate(found.worst, 1):
        name = f"change-{number:02d}.png"
        told = _drawn(folder / name, change)
        where = f"{change.frame.sequence_id} {change.frame.camera} {change.frame.index}"
        lines += [f"![{change.kind}]({name})" if not told else f"({told})", ""]
        lines += [f"{where}: {change.label}, {change.kind}, IoU {change.iou:.3f}", ""]
    (folder / "diff.md").write_text("\n".join(lines), encoding="utf-8")


def _row(name: str, one: dict[str, Any]) -> str:
    iou = "" if one["miou"] is None else f"{one['miou']:.4f}"
    gain = "" if one["predicted_iou_gain"] is None else f"{one['predicted_iou_gain']:+.4f}"
    return f"| {name} | {one['instances']} | {one['changed']} | {iou} | {gain} |"


def _drawn(path: Path, change: Change) -> str:
    """Draw a change; returns why not, "" where it is drawn."""
    import numpy as np

    from sam2_core.trust.pictures import write_difference
    from tasks.frames.download import download
    from tasks.frames.images import read_image
    from tasks.types import FrameRef

    (frame,) = download([change.frame])
    if not isinstance(frame, FrameRef):
        return f"its picture cannot be had: {frame.reason}"
    pixels = read_image(frame)
    nothing = _empty((pixels.shape[0], pixels.shape[1]))
    masks = [one or nothing for one in change.rle]
    write_difference(path, pixels, masks[0], masks[1], np.array(change.box_xyxy_px))
    return ""


def _empty(size_hw: tuple[int, int]) -> bytes:
    import numpy as np
    from pycocotools import mask as coco_mask

    return bytes(coco_mask.encode(np.zeros(size_hw, np.uint8, order="F"))["counts"])


def _print(result: dict[str, Any], report: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("instances", "count", "changed", "mean IoU", "predicted IoU", box=None)
    for name, one in {"all": result, **result["by_size"], **result["by_class"]}.items():
        table.add_row(*(cell.strip() for cell in _row(name, one).strip("|").split("|")))
    console.print(table)
    kinds = ", ".join(f"{count} {kind}" for kind, count in result["by_kind"].items() if count)
    changed = counted(len(result["changed_sequences"]), "sequence")
    console.print(f"{changed} with a change; changes: {kinds or 'none'}")
    if report:
        console.print(f"report: {report / 'diff.md'}", soft_wrap=True)
        console.print(
            f"label them again: autolabel backfill SOURCE... --out URL --sequences "
            f"@{report / CHANGED}", soft_wrap=True,
        )  # fmt: skip
