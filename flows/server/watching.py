"""Runs whose process is gone are queued again; watching a run until its shards have ended.

Each flow updates its run every half minute, which changes nothing but the time of its last update.
Every `autolabel worker`, and whoever waits for a run, looks for runs that stand still: those of
deployments are scheduled again, those of a command have Crashed. Prefect's own heartbeats and its
automation on missing ones were tried again on PostgreSQL: a run that went on while the server was
killed for two minutes was Crashed 3 s after the server was back, for the server counts the time in
which nobody could tell it anything.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import AwaitingRetry, Cancelled, Crashed

from flows.server.client import ServerAwayError, asked_once, connected
from flows.server.shard_runs import (
    MOST_STARTS,
    SHARD_FLOW,
    TAG,
    flow_runs,
    runs_of,
    stays_crashed,
)
from sam2_core.types import AutolabelError
from tasks.processes import repeating

FLOWS = (SHARD_FLOW, "nightly", "backfill", "load-dataset", "relabel", "label")
SIGN_OF_LIFE_S = 30.0
LOOK_EVERY_S = 15.0
CANCEL_S = 2.0
SILENT = 3 * SIGN_OF_LIFE_S, "no sign of life for {:.0f} s"
# By type of state: how long a run may stand still in it, and why it is lost then.
LOST_AFTER_S = {
    "RUNNING": SILENT,
    "CANCELLING": SILENT,
    # Fetching an image and starting Python on a busy machine take their time.
    "PENDING": (300.0, "a worker took it at least {:.0f} s ago and has not started it"),
    # Long enough for whoever else takes care of it; a worker reports a killed process twice.
    "CRASHED": (10.0, "its worker died"),
}
STARTED_WITHIN = timedelta(days=14)
# A server that is restarted, or moved, is back after minutes.
PATIENCE_S = 900.0

Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


def signs_of_life(every_s: float = SIGN_OF_LIFE_S) -> contextlib.AbstractContextManager[None]:
    """Tell Prefect now and then, while the block runs, that the current flow run lives."""
    run_id, name = flow_run.id, flow_run.name

    def tell() -> None:
        with contextlib.suppress(AutolabelError), asked_once(), connected() as client:
            client.update_flow_run(UUID(run_id), name=name)

    return repeating(tell, every_s) if run_id else contextlib.nullcontext()


def cancel_current(why: str) -> None:
    """Have the current flow run, where there is one, be Cancelled; a server that is away is left.

    Args:
        why: told in its new state.

    """
    context = FlowRunContext.get()
    if context and context.flow_run:
        with contextlib.suppress(AutolabelError), asked_once(CANCEL_S), connected() as client:
            state: State = Cancelled(message=why)
            client.set_flow_run_state(context.flow_run.id, state, force=True)


class LostRuns:
    """Which of the runs that somebody sees again and again stand still, by the clock of who looks.

    Comparing the server's times with ours would need equal clocks.

    Args:
        clock_s: seconds of a clock that runs on.

    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._since_s: dict[tuple[object, ...], float] = {}

    def forget(self) -> None:
        """Begin anew: the server was away, and runs could not tell it anything either."""
        self._since_s = {}

    def among(self, runs: Iterable[FlowRun]) -> list[tuple[FlowRun, str]]:
        """Return the runs that are lost by now, each with the reason.

        Args:
            runs: all that may be lost, as Prefect has just told them.

        """
        before, now_s, lost = self._since_s, self._clock_s(), []
        self._since_s = {}
        for run in runs:
            state = run.state
            if state is None or state.type.value not in LOST_AFTER_S or stays_crashed(run):
                continue
            seen = run.id, state.id, run.updated
            since_s = self._since_s[seen] = before.get(seen, now_s)
            limit_s, why = LOST_AFTER_S[state.type.value]
            if now_s - since_s >= limit_s:
                message = f" ({state.message})" if state.is_crashed() and state.message else ""
                lost.append((run, why.format(now_s - since_s) + message))
        return lost


def looking_after(every_s: float = LOOK_EVERY_S) -> contextlib.AbstractContextManager[None]:
    """Schedule lost runs again while the block runs."""
    lost_runs = LostRuns()

    def look() -> None:
        try:
            with asked_once():
                for run, why in lost_runs.among(_may_be_lost()):
                    _settle(run, why)
        except AutolabelError:
            lost_runs.forget()

    return repeating(look, every_s)


def _settle(run: FlowRun, why: str) -> None:
    """Schedule a lost run again, or end it if it was being cancelled or nobody would start it.

    Nothing happens where somebody was faster.

    Raises:
        AutolabelError: Prefect is not there.

    """
    with connected() as client:
        now = client.read_flow_run(run.id).state
        if not (now and run.state and now.id == run.state.id):
            return
        again = run.deployment_id and run.run_count <= MOST_STARTS
        ends = Cancelled if now.is_cancelling() else AwaitingRetry if again else Crashed
        then: State = ends(message=why)
        client.set_flow_run_state(run.id, then, force=True)
    log.warning("%s: %s, now %s", run.name, why, then.name)


def _may_be_lost() -> Iterator[FlowRun]:
    """Our runs that somebody has begun and that have not ended well."""
    begun = flow_runs(
        FLOWS,
        state={"type": {"any_": list(LOST_AFTER_S)}},
        tags={"all_": [TAG]},
        expected_start_time={"after_": datetime.now(UTC) - STARTED_WITHIN},
    )
    return (one for one in begun if one.deployment_id or not (one.state and one.state.is_crashed()))


def answers(
    ask: Callable[[], Answer], poll_s: float, tell: Callable[[str], object] = log.warning
) -> Iterator[tuple[Answer | None, bool]]:
    """Ask Prefect every `poll_s` seconds; yields its last answer, and whether it answers now.

    Args:
        ask: asks it.
        poll_s: seconds between two questions.
        tell: is told, once each, that the server is away or back.

    Raises:
        ServerAwayError: it did not answer for a quarter of an hour.
        AutolabelError: it refuses.

    """
    answer: Answer | None = None
    away_since: float | None = None
    while True:
        try:
            with asked_once():
                answer = ask()
        except ServerAwayError as error:
            if away_since is None:
                away_since = time.monotonic()
                tell(f"{error}. Waiting for it, {PATIENCE_S / 60:.0f} minutes at most")
            elif time.monotonic() - away_since > PATIENCE_S:
                raise
        else:
            if away_since is not None:
                away_s = time.monotonic() - away_since
                tell(f"Prefect's API answers again, after {away_s:.0f} s")
                away_since = None
        yield answer, away_since is None
        time.sleep(poll_s)


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
    interrupted: set[tuple[UUID, int]] = set()
    with looking_after():
        asked = answers(lambda: list(runs_of(run_key, out_uri, active_only=True)), poll_s, tell)
        for active, is_there in asked:
            for run in active or ():
                lies = run.state and (run.state.is_crashed() or run.state.name == "AwaitingRetry")
                if run.state and lies and (run.id, run.run_count) not in interrupted:
                    interrupted.add((run.id, run.run_count))
                    tell(f"{run.name} was interrupted: {run.state.message or 'no reason given'}")
            yield active or []
            if is_there and not active:
                return
