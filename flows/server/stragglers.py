"""Shards that take far longer than was thought: others help from the end once they are idle."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from flows.plan.shards import from_the_end
from flows.server.shard_runs import shard_of
from flows.server.submit import Submitted, submit

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

HELPER = "autolabel-helper"
# So much slower than estimated is slow; a start takes a while however short the shard is.
SLOWER = 2.0
START_S = 60.0


def stragglers(active: Iterable[FlowRun], seconds_per_frame: float) -> list[FlowRun]:
    """Return shards that run over twice their time while no other shard waits for a worker."""
    runs = list(active)
    if any(run.state is None or not run.state.is_running() for run in runs):
        return []
    now = datetime.now(UTC)
    return [
        run
        for run in runs
        if run.start_time
        and HELPER not in run.tags
        and (now - run.start_time).total_seconds()
        > START_S + SLOWER * seconds_per_frame * shard_of(run).frames
    ]


def help_stragglers(
    active: Iterable[FlowRun], seconds_per_frame: float, helped: set[UUID]
) -> list[Submitted]:
    """Submit a helper for every straggler that is not among the `helped`, and add it to them."""
    submitted = []
    for run in stragglers(active, seconds_per_frame):
        helper = from_the_end(shard_of(run))
        if helper and run.id not in helped:
            submitted += submit([helper], tags=[HELPER])
        helped.add(run.id)
    return submitted
