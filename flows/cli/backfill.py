"""`autolabel backfill`: plan from storage, submit what is missing, watch it."""

import sys
from typing import Any

import click

from flows.cli.commands import Command
from flows.cli.common_options import dry_run_option, json_option, notify_option, print_json
from flows.cli.main import INTERRUPTED
from flows.cli.options import LABEL_FIRST, backfill_params, label_options, options_of
from flows.params import BackfillParams


@click.command(
    cls=Command, first=f"{LABEL_FIRST} since until sequences dry_run wait cancel as_json"
)
@label_options
@options_of(BackfillParams, but={"label", "notify"})
@notify_option
@dry_run_option
@click.option("--wait", is_flag=True, help="Watch until every shard has ended, as with --notify.")
@click.option("--cancel", is_flag=True, help="Cancel this backfill's unfinished shards instead.")
@json_option
def command(dry_run: bool, wait: bool, cancel: bool, as_json: bool, **options: Any) -> None:
    """Submit what is in SOURCE and not yet labeled in --out to GPU workers, in shards of minutes.

    Nothing is submitted or labeled twice: repeat it after an interruption, or every hour. Labels
    of before that are missing in the dataset are loaded at once. Exit code 0: submitted (with
    --wait, or where nothing is under way: all labeled and loaded); 1: some sequences or frames are
    not; 2: bad usage; 130: Ctrl-C ended the watching, the shards go on.
    """
    from flows.cli.backfill_run import run_backfill
    from flows.server.api import use_api
    from flows.server.notify import tell

    if cancel and (dry_run or wait):
        raise click.UsageError(f"--cancel excludes {'--dry-run' if dry_run else '--wait'}")
    params = backfill_params(options)
    if not dry_run:
        use_api()
    result = run_backfill(params, dry_run=dry_run, wait=wait or bool(params.notify), cancel=cancel)
    print_json(as_json, result)
    incomplete = result.get("failed") or result.get("failed_frames") or result.get("remaining")
    if incomplete:
        tell(params, "a backfill", "some sequences or frames are not labeled or loaded")
    sys.exit(INTERRUPTED if result.get("interrupted") else 1 if incomplete else 0)
