"""Watching a run until its shards have ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flows.server.shard_runs import ServerAwayError, runs_of

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# A server that is restarted, or moved, is back after minutes.
PATIENCE_S = 900.0

log = logging.getLogger(__name__)


def watch(run_key: str, poll_s: float) -> Iterator[list[FlowRun]]:
    """Yield a run's shards that have not ended every `poll_s`, for the last time when all have.

    Raises:
        ServerAwayError: Prefect did not answer for a quarter of an hour.
        AutolabelError: it refuses.

    """
    answered = time.monotonic()
    while True:
        try:
            active = list(runs_of(run_key, active_only=True))
        except ServerAwayError as error:
            if time.monotonic() - answered > PATIENCE_S:
                raise
            log.warning("%s; looking again in %.0f s", error, poll_s)
        else:
            answered = time.monotonic()
            yield active
            if not active:
                return
        time.sleep(poll_s)
