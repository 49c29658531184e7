"""Shards whose worker is gone, found by asking instead of by waiting to be told.

The server's automations (`flows.server.automations`) do the same sooner, as long as the server
hears of every event. After a restart it does not: an event names the one before it, the server
remembers in memory which it has seen, and one whose predecessor it does not know waits for a
quarter of an hour. So whoever watches a run looks for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from flows.server.automations import HEARTBEAT_S, MISSED, START_S
from flows.server.shard_runs import MOST_STARTS, explained, runs_of

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

# The automations go first.
CRASHED_FOR = timedelta(seconds=30)
SILENT_FOR = timedelta(seconds=HEARTBEAT_S * MISSED + 60)
NOT_STARTED_FOR = timedelta(seconds=START_S + 60)


def lost(runs: Iterable[FlowRun]) -> list[FlowRun]:
    """Return the runs that nobody works on, though they have not ended as far as Prefect knows.

    Those are: crashed and not scheduled again; taken by a worker and never begun; running or being
    cancelled without a heartbeat.

    Raises:
        AutolabelError: Prefect is not there.

    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return [run for run in runs if _is_lost(client, run)]


def _is_lost(client: SyncPrefectClient, run: FlowRun) -> bool:
    state = run.state
    if state is None:
        return False
    age = datetime.now(UTC) - state.timestamp
    if state.is_crashed():
        return age > CRASHED_FOR and run.run_count < MOST_STARTS
    if state.is_pending():
        return age > NOT_STARTED_FOR
    if not (state.is_running() or state.is_cancelling()) or age < SILENT_FOR:
        return False
    beat = _last_heartbeat(client, run)
    if beat is None:
        return age > NOT_STARTED_FOR
    return datetime.now(UTC) - beat > SILENT_FOR


def _last_heartbeat(client: SyncPrefectClient, run: FlowRun) -> datetime | None:
    """When the run was last heard of since it was started last."""
    from prefect.events.filters import (
        EventFilter,
        EventNameFilter,
        EventOccurredFilter,
        EventResourceFilter,
    )

    wanted = EventFilter(
        occurred=EventOccurredFilter(since=run.start_time or run.created or datetime.now(UTC)),
        event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
    )
    found = explained(lambda: client.read_events(wanted, limit=1)).events
    return found[0].occurred if found else None


class Rescue:
    """Schedules the lost shards of a run again, for as long as someone watches.

    Only what was lost under its eyes: shards that crashed days ago may have been done by others.
    """

    def __init__(self, run_key: str) -> None:
        self._run_key = run_key
        self._since = datetime.now(UTC) - timedelta(seconds=60)
        self._answering_since = datetime.now(UTC)

    def server_was_away(self) -> None:
        """Heartbeats of the time until now were lost: wait for new ones before missing them."""
        self._answering_since = datetime.now(UTC)

    def look(self) -> list[FlowRun]:
        """Schedule what is lost again; returns those runs.

        Raises:
            AutolabelError: Prefect is not there.

        """
        patient = datetime.now(UTC) - self._answering_since < SILENT_FOR
        found = [
            run
            for run in runs_of(self._run_key, unfinished_or_crashed=True)
            if run.state
            and (run.state.timestamp > self._since if run.state.is_crashed() else not patient)
        ]
        return [run for run in lost(found) if _again(run)]


def _again(run: FlowRun) -> bool:
    """Schedule a lost run again; one that was being cancelled is cancelled."""
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelled, Scheduled

    message = "its worker is gone"
    again: State[Any] = Scheduled(name="AwaitingRetry", message=message)
    if run.state and run.state.is_cancelling():
        again = Cancelled(message=message)
    with get_client(sync_client=True) as client:
        now = explained(lambda: client.read_flow_run(run.id)).state
        if not (now and run.state and now.id == run.state.id):
            return False  # someone was faster
        explained(lambda: client.set_flow_run_state(run.id, again, force=True))
    return True
