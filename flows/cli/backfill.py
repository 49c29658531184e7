"""`autolabel backfill`: plan from storage, submit what is missing, watch it."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from flows.cli.label import label_options, label_params


@click.command(short_help="Label what is missing, on the workers.")
@label_options
@click.option("--since", metavar="DATE", help="Only sequences taken from this day or moment on.")
@click.option("--until", metavar="DATE", help="Only sequences taken until this day or moment.")
@click.option("--sequences", metavar="GLOB", default="*", help="Only sequences whose names match.")
@click.option(
    "--shard-minutes", type=float, default=10.0, show_default=True, help="Length of a shard."
)
@click.option("--max-concurrency", type=int, metavar="N", help="Shards that run at once.")
@click.option("--priority", is_flag=True, help="Run before everything else that is waiting.")
@click.option("--retry-quarantined", is_flag=True, help="Also try sequences that were given up.")
@click.option("--usd-per-gpu-hour", type=float, metavar="X", help="Price, for the estimate.")
@click.option("--dry-run", is_flag=True, help="Print the plan, submit nothing.")
@click.option("--wait", is_flag=True, help="Watch until every shard has ended.")
@click.option("--cancel", is_flag=True, help="Cancel this backfill's unfinished shards instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    since: str | None,
    until: str | None,
    sequences: str,
    shard_minutes: float,
    max_concurrency: int | None,
    priority: bool,
    retry_quarantined: bool,
    usd_per_gpu_hour: float | None,
    dry_run: bool,
    wait: bool,
    cancel: bool,
    as_json: bool,
    **label: Any,
) -> None:
    """Compare what is below SOURCE with what is labeled below --out, and submit the difference to
    the GPU workers as shards of some minutes each.

    Nothing is submitted or labeled twice: run it again after an interruption, or every hour.
    Exit code 0: submitted (with --wait: all labeled); 1: some sequences failed; 2: bad usage.
    """  # noqa: D205
    from flows.cli.backfill_run import run_backfill
    from flows.cli.label import validated
    from flows.plan.backfill import BackfillParams
    from flows.server.api import use_api

    params = validated(
        BackfillParams,
        label=label_params(label).absolute(),
        since=since,
        until=until,
        sequences=sequences,
        shard_minutes=shard_minutes,
        max_concurrency=max_concurrency,
        priority=priority,
        retry_quarantined=retry_quarantined,
        usd_per_gpu_hour=usd_per_gpu_hour,
    )
    if not dry_run:
        use_api()
    result = run_backfill(params, dry_run=dry_run, wait=wait, cancel=cancel)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    sys.exit(1 if result.get("failed") else 0)
