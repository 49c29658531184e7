"""The progress of a backfill, in one line, for `backfill --wait`."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from flows.cli.display import clock
from flows.plan.backfill import BackfillPlan
from flows.server.artifacts import percent_done
from flows.server.client import ServerAwayError, asked_once
from flows.server.shard_runs import counted_states, counts, shard_of
from tasks.store import manifests, storage
from tasks.store.retry import is_transient
from tasks.wording import counted

if TYPE_CHECKING:
    from prefect.client.schemas import FlowRun

log = logging.getLogger(__name__)


class HowFar:
    """How far a backfill is: its sequences as storage has them, its frames as the shards tell."""

    def __init__(self, plan: BackfillPlan) -> None:
        self.run_key, self.out_uri = plan.stamp.run_key, plan.params.label.out
        self._complete = manifests.list_complete(self.out_uri, self.run_key)
        self._before = len(self._complete)
        self.sequences = plan.to_label + plan.in_flight
        self._about = "about " if plan.frames_estimated else ""
        self._of = {one.key: one.frames for one in plan.works}
        self._percent: dict[UUID, float] = {}
        self._done = 0  # frames at the last look: shards may report less after one is lost
        self._first: tuple[float, int] | None = None  # when frames were first counted, and how many

    def labeled(self) -> int:
        """Sequences that are complete by now, as last seen: storage may be away for a while."""
        try:
            self._complete = manifests.list_complete(self.out_uri, self.run_key)
        except storage.StorageError as error:
            if not is_transient(error):
                raise
            log.warning("%s", error)
        return min(len(self._complete) - self._before, self.sequences)

    def text(self, active: Sequence[FlowRun]) -> str:
        """Say all of it in a line; `active` are the shards that have not ended."""
        with contextlib.suppress(ServerAwayError), asked_once():  # the watcher reports it
            self._percent |= percent_done([one.id for one in active if one.state_name == "Running"])
        labeled = self.labeled()
        for one in active:  # those of earlier backfills, too
            self._of |= {piece.key: piece.frames for piece in shard_of(one).pieces}
        done = sum(frames for key, frames in self._of.items() if key in self._complete)
        for one in active:  # of its sequences those that storage has are counted already
            pieces = [piece for piece in shard_of(one).pieces if piece.key not in self._complete]
            if pieces:
                told = shard_of(one).frames * self._percent.get(one.id, 0.0) / 100
                stored = shard_of(one).frames - sum(piece.frames for piece in pieces)
                done += max(0, round(told) - stored)
        now, total = time.monotonic(), sum(self._of.values())
        self._done = max(self._done, min(done, total))
        self._first = self._first or (now, self._done)
        first_s, before = self._first
        parts = [f"{self._about}{self._done:,} of {counted(total, 'frame')}"]
        parts.append(f"{labeled:,} of {counted(self.sequences, 'sequence')} labeled")
        if self._done > before:
            pace = (now - first_s) / (self._done - before)
            parts.append(f"about {clock(pace * (total - self._done))} left")
        return f"{', '.join(parts)}; shards: {counted_states(counts(active))}"
