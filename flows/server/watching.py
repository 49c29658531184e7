"""Watching a run until its shards have ended; those whose process is gone are queued again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from flows.server.client import ServerAwayError, asked_once
from flows.server.lost_runs import LostRuns
from flows.server.shard_runs import runs_of, settle, stays_crashed

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# A server that is restarted, or moved, is back after minutes.
PATIENCE_S = 900.0
# What was interrupted longer ago is no news.
JUST_BEFORE = timedelta(seconds=60)

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
    watched = _Watched(run_key, out_uri, tell)
    away_since: float | None = None
    while True:
        try:
            runs = watched.asked()
            if away_since is not None:
                tell(f"Prefect's API answers again, after {time.monotonic() - away_since:.0f} s")
                away_since = None
            watched.look_after(runs)
        except ServerAwayError as error:
            if away_since is None:
                away_since = time.monotonic()
                tell(f"{error}. Waiting for it, {PATIENCE_S / 60:.0f} minutes at most")
            elif time.monotonic() - away_since > PATIENCE_S:
                raise
        yield watched.active
        if not watched.active and away_since is None:
            return
        time.sleep(poll_s)


@dataclass
class _Watched:
    """A run's shards as they were when Prefect last answered."""

    run_key: str
    out_uri: str
    tell: Callable[[str], object]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    active: list[FlowRun] = field(default_factory=list)
    interruptions: dict[UUID, int] = field(default_factory=dict)  # of each shard, that were told
    lost_runs: LostRuns = field(default_factory=LostRuns)

    def asked(self) -> list[FlowRun]:
        """Return the shards that have not ended well, as Prefect knows them now."""
        with asked_once():
            return list(runs_of(self.run_key, self.out_uri, unfinished_or_crashed=True))

    def look_after(self, runs: list[FlowRun]) -> None:
        """Tell what happened to shards, and start again what lies there."""
        active = []
        with asked_once():
            lost = {run.id: why for run, why in self.lost_runs.among(runs)}
            for run in runs:
                self._tell_interruption(run)
                why = lost.get(run.id, "")
                if why and (done := settle(run, why)):
                    self.tell(f"{run.name} is {done}: {why}")
                if why or not stays_crashed(run):
                    active.append(run)
        self.active = active

    def _tell_interruption(self, run: FlowRun) -> None:
        """Tell that a shard was begun and has not ended so, also if it runs again by now."""
        state = run.state
        if state is None or stays_crashed(run) or state.timestamp < self.began - JUST_BEFORE:
            return
        lying = state.is_crashed() or state.name == "AwaitingRetry"
        has_begun = not (lying or state.is_scheduled() or state.is_pending())
        count = run.run_count - has_begun
        if count > self.interruptions.setdefault(run.id, count - lying):
            self.interruptions[run.id] = count
            why = (state.message if lying else "") or "it has been begun again"
            self.tell(f"{run.name} was interrupted: {why}")
