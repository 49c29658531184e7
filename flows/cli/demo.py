"""`autolabel demo`: a first look without any data, network or GPU."""

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from flows.cli.common_options import json_option, print_json
from flows.cli.display import as_typed, spinning, stderr_console
from sam2_core.cache import cache_folder
from tasks.evaluate.evaluate import EXAMPLES, evaluate, open_truth

DATASET = "demo"
REAL, PICTURES = "real-3-cameras", 6  # of each drive at least one


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Label three rendered drives and a real one with the bundled models, load them into FiftyOne,
    the rendered ones beside their exact truth, and say how well they agree.

    Needs no data, no network and no GPU. A second run finds everything there.
    """  # noqa: D205
    from flows.cli.label import leave_overlays

    console = stderr_console()
    summary = run_demo(console)
    console.print(
        f"compared with the truth: mask IoU [bold]{summary['mask_miou']:.3f}[/] on average over "
        f"{summary['true_instances']} objects ({summary['mask_miou_of_found']:.3f} over the "
        f"{summary['box_recall']:.0%} that the detector found), box AP50 "
        f"[bold]{summary['box_ap50']:.3f}[/]"
    )
    truth = escape(as_typed("evaluate", f"dataset:{DATASET}", "--out", summary["out"]))
    console.print(f"more of that: [bold]{truth}[/]", soft_wrap=True)
    pictures = leave_overlays(summary, PICTURES)
    console.print(f"took {summary['seconds']['total']:.0f} s")
    app = f"everything, with the truth: [bold]{escape(as_typed('review', 'demo'))}[/]"
    for real in [uri for uri in pictures if REAL in uri][:1]:  # none where nothing was labeled
        app = f"a frame of the real drive: [bold]{escape(Path(real).as_uri())}[/], and {app}"
    console.print(f"open {app}", soft_wrap=True)
    summary["overlays"] = pictures
    home = Path(summary["out"]).parent
    again = as_typed("backfill", f"{home}/sequences", "--out", f"{home}/backfill", "--wait")
    console.print(
        f"the same drives as a Prefect backfill: [bold]{escape(as_typed('up'))}[/], which says "
        f"where its page is, then [bold]{escape(again)}[/]",
        soft_wrap=True,
    )
    print_json(as_json, summary)
    sys.exit(1 if summary["failed"] else 0)


def run_demo(console: Console) -> dict[str, Any]:
    """Label, load, compare; returns the summary with `mask_miou` and `box_ap50`.

    A second call finds everything there and only compares.
    """
    from flows.cli.label import run_label
    from flows.params import LabelParams

    started, home = time.perf_counter(), cache_folder() / "demo-1"
    frames = home / "sequences"  # a copy, which outlives the checkout
    if not all((frames / drive.name).is_dir() for drive in EXAMPLES.iterdir()):
        unfinished = home / "unfinished"
        for folder in (unfinished, frames):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(EXAMPLES, unfinished)
        unfinished.replace(frames)
    console.print("three rendered drives, with exact masks to compare with, and a real one")
    params = LabelParams(
        sources=(str(frames),),
        out=str(home / "labels"),
        dataset=DATASET,
        model="compact",
        detector="compact",
        relabel_reviewed=True,
    )
    summary = run_label(params)
    with spinning(console, "comparing with the truth"):
        summary |= compare(params.out, summary["run_key"], frames)
    summary["seconds"]["total"] = round(time.perf_counter() - started, 3)
    return summary


def compare(out_uri: str, run_key: str, folder: Path) -> dict[str, Any]:
    """Put the truth beside the labels in FiftyOne; `evaluate dataset:demo --out` says the same."""
    from tasks.evaluate.stored_labels import StoredLabels
    from tasks.load.into_fiftyone import load_truth

    for path in folder.glob("*/truth.json"):
        load_truth(DATASET, path, path.parent.name)
    truth = open_truth(f"dataset:{DATASET}", None)
    *_, scores = evaluate(truth, None, StoredLabels(truth, out_uri, run_key), by_row=False)
    result = scores.result()
    return {
        "mask_miou": result["miou"],
        "mask_miou_of_found": result["miou_matched"],
        "box_recall": result["recall"],
        "box_ap50": result["ap50"],
        "mask_ap50": result["mask_ap50"],
        "true_instances": result["instances"],
        "compared_frames": result["images"],
    }
