"""Watching a run until its shards have ended; what the server leaves lying is started again.

Automations do that too, and sooner; but after a restart the server holds events back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tenacity import (
    Retrying,
    before_sleep_log,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from flows.server.shard_runs import MOST_STARTS, ServerAwayError, runs_of, schedule_again

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# A server that is restarted, or moved, is back after minutes.
PATIENCE_S = 900.0
# The automation goes first. What crashed long before may have been done by others.
CRASHED_FOR, JUST_BEFORE = timedelta(seconds=30), timedelta(seconds=60)
# Taken by a worker that died before the run began; the automation's time and a minute.
NOT_BEGUN_FOR = timedelta(seconds=360)

log = logging.getLogger(__name__)


def watch(run_key: str, poll_s: float) -> Iterator[list[FlowRun]]:
    """Yield a run's shards that have not ended every `poll_s`, for the last time when all have.

    Raises:
        ServerAwayError: Prefect did not answer for a quarter of an hour.
        AutolabelError: it refuses.

    """
    began = datetime.now(UTC)
    retrying = Retrying(
        retry=retry_if_exception_type(ServerAwayError),
        stop=stop_after_delay(PATIENCE_S),
        wait=wait_fixed(poll_s),
        before_sleep=before_sleep_log(log, logging.WARNING),
        reraise=True,
    )
    while True:
        active = retrying(_looked_after, run_key, began)
        yield active
        if not active:
            return
        time.sleep(poll_s)


def _looked_after(run_key: str, began: datetime) -> list[FlowRun]:
    """Start again what was left lying; returns the shards that have not ended."""
    for run in runs_of(run_key, unfinished_or_crashed=True):
        if (_left_crashed(run, began) or _never_begun(run)) and schedule_again(
            run, "its worker is gone"
        ):
            log.warning("%s had lost its worker and is scheduled again", run.name)
    return list(runs_of(run_key, active_only=True))


def _left_crashed(run: FlowRun, began: datetime) -> bool:
    """Whether a run has crashed under our eyes, or just before, and nobody starts it again."""
    state = run.state
    if state is None or not state.is_crashed() or run.run_count >= MOST_STARTS:
        return False
    now = datetime.now(UTC)
    return began - JUST_BEFORE < state.timestamp < now - CRASHED_FOR


def _never_begun(run: FlowRun) -> bool:
    """Whether a worker took a run long ago and has not begun it."""
    state = run.state
    if state is None or not state.is_pending():
        return False
    return state.timestamp < datetime.now(UTC) - NOT_BEGUN_FOR
