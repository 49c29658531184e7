"""The flow `nightly`: label what has arrived since the last success, and say how it went."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.backfill import backfill
from flows.load_dataset import load_missing
from flows.plan.backfill import BackfillParams, plan_backfill
from flows.plan.run import stamp_of
from flows.server.shard_runs import MOST_STARTS
from flows.server.watching import watch
from tasks.errors import redacted_errors
from tasks.store import manifests, quarantine, watermark

POLL_S = 20.0
ROUNDS = 2
# Drives are uploaded late: look this far behind the last success.
LOOK_BACK = timedelta(days=7)


@flow(name="nightly", description="Label what is new since the last success.", persist_result=False)
def nightly(params: BackfillParams, watermark_name: str = "nightly", wait_hours: float = 10) -> Any:
    """Submit what is missing of the sequences since the watermark, wait for it, and load it.

    What failed is submitted once more in the same night. The watermark moves only when everything
    that was found is labeled or given up; until then every night looks at the same days again, and
    finds only what is missing. A night in which a sequence was given up ends Failed, once.

    Args:
        params: what to label; `since` is set from the watermark unless it is given.
        watermark_name: one watermark for each nightly deployment.
        wait_hours: the longest to wait for the shards.

    """
    with redacted_errors():
        return _nightly(params, watermark_name, wait_hours)


def _nightly(params: BackfillParams, watermark_name: str, wait_hours: float) -> Any:
    if flow_run.run_count > MOST_STARTS:
        return Failed(message=f"its workers died {MOST_STARTS} times: not started again by itself")
    began, deadline = datetime.now(UTC), time.monotonic() + wait_hours * 3600
    out_uri = params.label.out
    params = _since_watermark(params, watermark.read(out_uri, watermark_name))
    given_up = quarantine.listed(out_uri, stamp_of(params.label).run_key)
    for _ in range(ROUNDS):
        planned = backfill.fn(params)
        ended = _wait(planned, out_uri, deadline)
        left = plan_backfill(params)
        if not ended or not left.to_label:
            break
    if params.label.dataset_name:
        load_missing(params.label.dataset_name, out_uri, planned["run_key"])
    message = f"{left.up_to_date} of {left.sequences} sequences are labeled"
    if left.quarantined:
        message += f", {left.quarantined} are given up"
    if left.to_label or not ended:
        return Failed(message=f"{message}; `autolabel status` tells why the others are not")
    watermark.advance(out_uri, watermark_name, began)
    if quarantine.listed(out_uri, planned["run_key"]) - given_up:
        return Failed(message=f"{message}, some of them this night: see `autolabel status`")
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
    for glance in watch(planned["run_key"], planned["seconds_per_frame"], POLL_S):
        done = len(manifests.list_complete(out_uri, planned["run_key"])) - before
        update_progress_artifact(bar, min(100.0, 100 * done / total) if total else 100.0)
        for run in glance.rescued:
            logger.warning("%s had lost its worker and is scheduled again", run.name)
        if glance.active and time.monotonic() > deadline:
            logger.error("time is up: shards are still under way")
            return False
    update_progress_artifact(bar, 100.0)
    return True
