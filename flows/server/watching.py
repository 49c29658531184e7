"""Watching a run until its shards have ended: helping slow ones, taking lost ones back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from flows.server.rescue import Rescue
from flows.server.shard_runs import ServerAwayError, runs_of
from flows.server.stragglers import help_stragglers
from flows.server.submit import Submitted

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# A server that is restarted, or moved, is back after minutes.
PATIENCE_S = 900.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Glance:
    """What was seen, and done about it.

    Attributes:
        active: shards that have not ended.
        helpers: shards submitted to share slow ones.
        rescued: shards that had lost their worker and were scheduled again.

    """

    active: list[FlowRun]
    helpers: list[Submitted]
    rescued: list[FlowRun]


def watch(run_key: str, seconds_per_frame: float, poll_s: float) -> Iterator[Glance]:
    """Look at a run's shards every `poll_s`, for the last time when none is active.

    Raises:
        ServerAwayError: Prefect did not answer for a quarter of an hour.
        AutolabelError: it refuses.

    """
    rescue, helped = Rescue(run_key), set[UUID]()
    answered = time.monotonic()
    while True:
        try:
            rescued = rescue.look()
            active = list(runs_of(run_key, active_only=True))
            helpers = help_stragglers(active, seconds_per_frame, helped)
        except ServerAwayError as error:
            rescue.server_was_away()
            if time.monotonic() - answered > PATIENCE_S:
                raise
            log.warning("%s; looking again in %.0f s", error, poll_s)
        else:
            answered = time.monotonic()
            yield Glance(active, helpers, rescued)
            if not active:
                return
        time.sleep(poll_s)
