"""Runs from Python, as their commands do them."""

from typing import Any

from flows.cli.label import run_label
from flows.params import BackfillParams, LabelParams
from flows.server.api import use_api


def label(params: LabelParams) -> dict[str, Any]:
    """Label as `autolabel label` does; what it says goes to stderr, Ctrl-C is Python's own.

    `flows.label.label` is the same as a Prefect flow, which needs `PREFECT_API_URL`.

    Returns:
        The summary, what `autolabel label --json` prints.

    Raises:
        AutolabelError: nothing could be started (missing source, unusable model, ...).

    """
    return run_label(params, stopped="")


def backfill(params: BackfillParams, *, wait: bool = False) -> dict[str, Any]:
    """Submit as `autolabel backfill` does; `wait` watches until every shard has ended.

    `flows.backfill.backfill` is the same as a Prefect flow, which needs `PREFECT_API_URL`.

    Returns:
        What `autolabel backfill --json` prints.

    Raises:
        AutolabelError: nothing can be planned, or no server runs, of `autolabel up` or yours.

    """
    use_api()
    from flows.cli.backfill_run import run_backfill

    return run_backfill(params, wait=wait)
