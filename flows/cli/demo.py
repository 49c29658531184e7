"""`autolabel demo`: a first look without any data, network or GPU."""

from __future__ import annotations

import json
import sys

import click

from flows.cli.common_options import json_option


@click.command(short_help="Render, label and load a few sequences.")
@json_option
def command(as_json: bool) -> None:
    """Render three driving sequences, label them with the bundled models, load them into FiftyOne
    beside their exact truth, and say how well they agree.

    Needs no data, no network and no GPU. A second run finds everything there.
    """  # noqa: D205
    from flows.cli.demo_run import run_demo
    from flows.cli.display import as_typed, stderr_console

    console = stderr_console()
    summary = run_demo(console)
    console.print(
        f"compared with the truth: mask IoU [bold]{summary['mask_miou']:.3f}[/] on average over "
        f"{summary['true_instances']} objects ({summary['mask_miou_of_found']:.3f} over the "
        f"{summary['box_recall']:.0%} that the detector found), box AP50 "
        f"[bold]{summary['box_ap50']:.3f}[/]"
    )
    console.print(
        f"took {summary['seconds']['total']:.0f} s; `{as_typed('review', 'demo')}` shows both"
    )
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    sys.exit(1 if summary["failed"] else 0)
