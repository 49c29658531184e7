"""Runs that stand still: each run gives signs of life, and lost ones start again.

Each flow updates its run every half minute, which changes nothing but the time of its last update.
Every `autolabel worker` and every watched backfill looks for runs that stand still: those of
deployments are scheduled again, those of a command have Crashed. Prefect's own heartbeats and its
automation on missing ones were tried again on PostgreSQL: a run that went on while the server was
killed for two minutes was Crashed 3 s after the server was back, for the server counts the time in
which it could not be reached.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run
from prefect.states import AwaitingRetry, Cancelled, Crashed

from flows.server.client import asked_once, connected, server_time
from flows.server.prefect_runs import MOST_STARTS, TAG, flow_runs, runs_of, stays_crashed
from sam2_core.types import AutolabelError
from tasks.processes import repeating
from tasks.store.retry import until_answered

log = logging.getLogger(__name__)

SIGN_OF_LIFE_S = 30.0
LOOK_EVERY_S = 15.0
SILENT = 3 * SIGN_OF_LIFE_S, "no sign of life for {:.0f} s"
# By type of state: how long a run may stand still in it, and why it is lost then.
LOST_AFTER_S = {
    "RUNNING": SILENT,
    "CANCELLING": SILENT,
    # Fetching an image and starting Python on a busy machine take their time.
    "PENDING": (300.0, "a worker took it at least {:.0f} s ago and has not started it"),
    # Long enough for its own worker to take care of it; it reports a killed process twice.
    "CRASHED": (10.0, "its worker died"),
}
STARTED_WITHIN = timedelta(days=14)
# A server that is restarted, or moved, is back after minutes.
PATIENCE_S = 900.0


def signs_of_life(every_s: float = SIGN_OF_LIFE_S) -> contextlib.AbstractContextManager[None]:
    """Tell Prefect now and then, while the block runs, that the current flow run lives."""

    def tell() -> None:
        with contextlib.suppress(AutolabelError), asked_once(), connected() as client:
            client.update_flow_run(UUID(flow_run.id), tags=flow_run.tags)

    return repeating(tell, every_s) if flow_run.id else contextlib.nullcontext()


def lost_among(
    runs: Iterable[FlowRun], since_s: dict[tuple[UUID, object], float], now_s: float
) -> list[tuple[FlowRun, str]]:
    """Return the runs that are lost by now, each with the reason.

    Comparing the server's times with ours would need equal clocks, so time counts from when a run
    was first seen as it is.

    Args:
        runs: all that may be lost, as Prefect has just told them.
        since_s: since when they stand still; updated.
        now_s: of the same clock.

    """
    before, lost = since_s.copy(), []
    since_s.clear()
    for run in runs:
        seen = run.id, run.updated
        since_s[seen] = before.get(seen, now_s)
        state = cast("State[Any]", run.state)
        limit_s, why = LOST_AFTER_S[state.type.value]
        if now_s - since_s[seen] >= limit_s:
            message = f" ({state.message})" if state.is_crashed() and state.message else ""
            lost.append((run, why.format(now_s - since_s[seen]) + message))
    return lost


def looking_after(every_s: float = LOOK_EVERY_S) -> contextlib.AbstractContextManager[None]:
    """Schedule lost runs again while the block runs."""
    since_s: dict[tuple[UUID, object], float] = {}

    def look() -> None:
        try:
            with asked_once():
                for run, why in lost_among(_may_be_lost(), since_s, time.monotonic()):
                    _settle(run, why)
        except AutolabelError:  # meanwhile runs could not tell the server anything either
            since_s.clear()

    return repeating(look, every_s)


def _settle(run: FlowRun, why: str) -> None:
    """Schedule a lost run again, or end it if it was being cancelled or cannot start again.

    Nothing happens where another process was faster.

    Raises:
        AutolabelError: Prefect is not there.

    """
    with connected() as client:
        # Asked before the look: in the time after it others may schedule the run, too.
        retry = partial(AwaitingRetry, scheduled_time=server_time(client))
        now = client.read_flow_run(run.id).state
        if not (now and run.state and now.id == run.state.id):
            return
        again = run.deployment_id and run.run_count <= MOST_STARTS
        ends = Cancelled if now.is_cancelling() else retry if again else Crashed
        then: State = ends(message=why)
        client.set_flow_run_state(run.id, then, force=True)
    log.warning("%s: %s, now %s", run.name, why, then.name)


def _may_be_lost() -> Iterator[FlowRun]:
    """Our runs that somebody has begun and that have not ended well."""
    begun = flow_runs(
        state={"type": {"any_": list(LOST_AFTER_S)}},
        tags={"all_": [TAG]},
        expected_start_time={"after_": datetime.now(UTC) - STARTED_WITHIN},
    )
    for run in begun:
        again = run.deployment_id or not (run.state and run.state.is_crashed())
        if run.state and again and not stays_crashed(run):
            yield run


def watch(
    run_key: str, out_uri: str, poll_s: float, tell: Callable[[str], object] = log.warning
) -> Iterator[list[FlowRun]]:
    """Yield a run's shards that have not ended every `poll_s`, for the last time when all have.

    Args:
        run_key: of the run.
        out_uri: its storage; other storages may get the same run.
        poll_s: seconds between two looks.
        tell: gets a line when the server is away.

    Raises:
        ServerAwayError: Prefect did not answer for a quarter of an hour.
        AutolabelError: it refuses.

    """

    def look() -> list[FlowRun]:
        with asked_once():
            return list(runs_of(run_key, out_uri, active_only=True))

    with looking_after():
        while active := until_answered(look, "watching", tell, PATIENCE_S):
            yield active
            time.sleep(poll_s)
        yield []
