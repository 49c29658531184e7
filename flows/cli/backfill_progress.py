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
from flows.server.client import ServerAwayError, asked_once
from flows.server.progress_artifact import percent_done
from flows.server.shard_runs import counted_states, counts, labeled_by, shard_of
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
        self.sequences, self._frames = plan.to_label + plan.in_flight, plan.frames
        self._about = "about " if plan.frames_estimated else ""
        self._of = {one.key: one.frames for one in plan.works}
        self._percent: dict[UUID, float] = {}
        self._shards: dict[UUID, int] = {}  # frames of those under way at the last look
        self._failed: dict[UUID, int] = {}  # frames of those that ended otherwise than labeled
        self._done = 0  # frames at the last look: shards may report less after one is lost
        self._first: tuple[float, int] | None = None  # when frames were first counted, and how many

    def labeled(self) -> int:
        """Sequences that are complete by now."""
        return self._so_many(self._listed())

    def _listed(self) -> set[tuple[str, str]]:
        """Return what is complete, as last seen: storage may be away for a while."""
        try:
            self._complete = manifests.list_complete(self.out_uri, self.run_key)
        except storage.StorageError as error:
            if not is_transient(error):
                raise
            log.warning("%s", error)
        return self._complete

    def _so_many(self, complete: set[tuple[str, str]]) -> int:
        return min(len(complete) - self._before, self.sequences)

    def text(self, active: Sequence[FlowRun]) -> str:
        """Say all of it in a line; `active` are the shards that have not ended."""
        of_shard = {one.id: shard_of(one).frames for one in active}
        with contextlib.suppress(ServerAwayError), asked_once():  # the watcher reports it
            self._percent |= percent_done([one.id for one in active if one.state_name == "Running"])
            ended = [one for one in self._shards if one not in of_shard]
            labeled = labeled_by(ended)
            self._failed |= {one: self._shards[one] for one in ended if one not in labeled}
            self._shards = of_shard
        self._failed = {one: self._failed[one] for one in self._failed if one not in of_shard}
        failed = sum(self._failed.values())
        # Earlier shards count, too.
        self._frames = max(self._frames, sum(of_shard.values()) + failed)
        left = sum(
            frames * (1 - self._percent.get(run_id, 0.0) / 100)
            for run_id, frames in of_shard.items()
        )
        complete = self._listed()
        # What shards tell is seconds old; nobody is to read of a whole sequence and no frame.
        stored = sum(frames for key, frames in self._of.items() if key in complete)
        now = time.monotonic()
        self._done = done = max(self._done, round(self._frames - failed - left), stored)
        self._first = self._first or (now, done)
        first_s, before = self._first
        parts = [f"{self._about}{done:,} of {counted(self._frames, 'frame')}"]
        parts.append(
            f"{self._so_many(complete):,} of {counted(self.sequences, 'sequence')} labeled"
        )
        if done > before:
            parts.append(f"about {clock((now - first_s) * left / (done - before))} left")
        return f"{', '.join(parts)}; shards: {counted_states(counts(active))}"
