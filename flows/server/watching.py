"""Watching a run until its shards have ended; those whose process is gone are queued again."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from flows.server.client import ServerAwayError, asked_once
from flows.server.lost_runs import look_after
from flows.server.shard_runs import runs_of

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# A server that is restarted, or moved, is back after minutes.
PATIENCE_S = 900.0

log = logging.getLogger(__name__)


def watch(
    run_key: str, out_uri: str, poll_s: float, tell: Callable[[str], object] = log.warning
) -> Iterator[list[FlowRun]]:
    """Yield a run's shards that have not ended every `poll_s`, for the last time when all have.

    While Prefect does not answer, what it said last is yielded.

    Args:
        run_key: of the run.
        out_uri: its storage; other storages may get the same run.
        poll_s: seconds between two looks.
        tell: is told, each once, of shards that were interrupted and of a server that is away or
            back.

    Raises:
        ServerAwayError: Prefect did not answer for a quarter of an hour.
        AutolabelError: it refuses.

    """
    active: list[FlowRun] = []
    away_since: float | None = None
    interrupted: set[tuple[UUID, int]] = set()
    ended = threading.Event()
    looking = contextvars.copy_context()  # which knows Prefect's address
    threading.Thread(target=looking.run, args=(look_after, ended), daemon=True).start()
    try:
        while True:
            try:
                with asked_once():
                    active = list(runs_of(run_key, out_uri, active_only=True))
                if away_since is not None:
                    away_s = time.monotonic() - away_since
                    tell(f"Prefect's API answers again, after {away_s:.0f} s")
                    away_since = None
            except ServerAwayError as error:
                if away_since is None:
                    away_since = time.monotonic()
                    tell(f"{error}. Waiting for it, {PATIENCE_S / 60:.0f} minutes at most")
                elif time.monotonic() - away_since > PATIENCE_S:
                    raise
            for run in active:
                lies = run.state and (run.state.is_crashed() or run.state.name == "AwaitingRetry")
                if run.state and lies and (run.id, run.run_count) not in interrupted:
                    interrupted.add((run.id, run.run_count))
                    tell(f"{run.name} was interrupted: {run.state.message or 'no reason given'}")
            yield active
            if not active and away_since is None:
                return
            time.sleep(poll_s)
    finally:
        ended.set()
