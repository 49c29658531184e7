"""The flow `nightly`: label what has arrived since the last success, and say how it went."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.states import Completed, Failed

from flows.backfill import backfill
from flows.backfill_plan import BackfillParams, plan_backfill
from flows.loading import load_missing
from flows.stragglers import help_stragglers
from flows.submit import runs_of
from tasks import manifests, watermark

POLL_S = 20.0
# Drives are uploaded late: look this far behind the last success.
LOOK_BACK = timedelta(days=7)


@flow(name="nightly", description="Label what is new since the last success.", persist_result=False)
def nightly(params: BackfillParams, watermark_name: str = "nightly", wait_hours: float = 10) -> Any:
    """Submit what is missing of the sequences since the watermark, wait for it, and load it.

    The watermark moves only when everything that was found is labeled; until then every night
    looks at the same days again, and finds only what is missing.

    Args:
        params: what to label; `since` is set from the watermark unless it is given.
        watermark_name: one watermark for each nightly deployment.
        wait_hours: the longest to wait for the shards.

    """
    began = datetime.now(UTC)
    out_uri = params.label.out
    params = _since_watermark(params, watermark.read(out_uri, watermark_name))
    planned = backfill.fn(params)
    ended = _wait(planned, out_uri, time.monotonic() + wait_hours * 3600)
    dataset = params.label.dataset_name
    if dataset:
        load_missing(dataset, out_uri, planned["run_key"])
    left = plan_backfill(params)
    remaining = left.to_label + left.quarantined
    message = f"{left.up_to_date} of {left.sequences} sequences are labeled"
    if remaining or not ended:
        return Failed(message=f"{message}; `autolabel status` tells why the others are not")
    watermark.advance(out_uri, watermark_name, began)
    return Completed(message=message)


def _since_watermark(params: BackfillParams, last: datetime | None) -> BackfillParams:
    if params.since or last is None:
        return params
    return params.model_copy(update={"since": (last - LOOK_BACK).isoformat(timespec="seconds")})


def _wait(planned: dict[str, Any], out_uri: str, deadline: float) -> bool:
    """Wait until no shard is under way; False when time is up."""
    logger = get_run_logger()
    total = planned["to_label"] + planned["in_flight"]
    bar = cast("UUID", create_progress_artifact(0.0, key="nightly", description="labeled"))
    before = planned["up_to_date"]
    helped: set[UUID] = set()
    while active := list(runs_of(planned["run_key"], active_only=True)):
        if time.monotonic() > deadline:
            logger.error("time is up: shards are still under way")
            return False
        help_stragglers(active, planned["seconds_per_frame"], helped)
        time.sleep(POLL_S)
        done = len(manifests.list_complete(out_uri, planned["run_key"])) - before
        update_progress_artifact(bar, min(100.0, 100 * done / total) if total else 100.0)
    update_progress_artifact(bar, 100.0)
    return True
