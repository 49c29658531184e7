"""`autolabel label`: sequences in, masks out, loaded into FiftyOne."""

from __future__ import annotations

import sys
from typing import Any

import click

from flows.cli.common_options import json_option, print_json
from flows.cli.options import label_options, label_params


@click.command(short_help="Label sequences of frames.")
@label_options
@click.option("--sequence", metavar="NAME", help="What to call the one sequence of SOURCE.")
@click.option(
    "--overlays", type=click.IntRange(0), default=0, metavar="N",
    help="Leave N pictures with their labels drawn over them beside the reports.",
)  # fmt: skip
@click.option(
    "--dry-run", "only_planned", is_flag=True, help="Say what would be done, and do nothing."
)
@json_option
def command(overlays: int, only_planned: bool, as_json: bool, **values: Any) -> None:
    """Label all sequences in SOURCE.

    A SOURCE is a folder of images, a folder of camera folders, a video, or a folder of these, on
    this machine or under an s3:// or https:// URL; a picture; a quoted pattern of any of these;
    @FILE for a list, one per line; or - for a list on stdin.

    Frames that are labeled already are not labeled again. Exit code 0: all labeled; 1: some frames
    or sequences failed, or there was nothing to label; 2: bad usage; 130: stopped by Ctrl-C.
    """
    from flows.cli.label_run import dry_run, leave_overlays, run_label

    params = label_params(values)
    summary = dry_run(params) if only_planned else run_label(params)
    if overlays and not only_planned:
        summary["overlays"] = leave_overlays(summary, overlays)
    print_json(as_json, summary)
    sys.exit(1 if summary.get("failed") or summary.get("nothing") else 0)
