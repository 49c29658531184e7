"""Runs whose process is gone are queued again; watching a run until its shards have ended.

A shard or a night says every half minute that it lives, by an update of its flow run that changes
nothing but when it was last updated. Whoever looks, which is every `autolabel worker` and whoever
waits for a run, sees what stands still and schedules it again. Prefect's own heartbeats and its
automation on missing ones were tried again on PostgreSQL: a run that went on while the server was
killed for two minutes was Crashed 3 s after the server was back, for the server counts the time in
which nobody could tell it anything.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from flows.server.client import ServerAwayError, asked_once, connected
from flows.server.shard_runs import MOST_STARTS, SHARD_FLOW, every_page, runs_of
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

FLOWS = (SHARD_FLOW, "nightly")
SIGN_OF_LIFE_S = 30.0
SILENT_S = 3 * SIGN_OF_LIFE_S
# Fetching an image and starting Python on a busy machine take their time.
NOT_BEGUN_S = 300.0
# Long enough for whoever else takes care of it; a worker reports a killed process twice.
CRASHED_S = 10.0
LOOK_EVERY_S = 15.0
# Who could not look for longer knows nothing of that time, and the runs could not tell either.
LONGEST_GAP_S = 60.0
# What crashed when nobody looked is not older than a weekend's power cut.
CRASHED_WITHIN, STARTED_WITHIN = timedelta(days=3), timedelta(days=14)
# A server that is restarted, or moved, is back after minutes.
PATIENCE_S = 900.0

log = logging.getLogger(__name__)


@contextlib.contextmanager
def signs_of_life(every_s: float = SIGN_OF_LIFE_S) -> Iterator[None]:
    """Tell Prefect now and then, while the block runs, that the current flow run lives."""
    from prefect.runtime import flow_run

    ended = threading.Event()

    def tell(run_id: str, name: str) -> None:
        while not ended.wait(every_s):
            with contextlib.suppress(AutolabelError), connected() as client:
                client.update_flow_run(UUID(run_id), name=name)

    if not flow_run.id:
        yield
        return
    told = partial(contextvars.copy_context().run, tell, flow_run.id, flow_run.name)
    threading.Thread(target=told, name="sign of life", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class LostRuns:
    """Which of the runs that somebody sees again and again stand still, by the clock of who looks.

    Comparing the server's times with ours would need equal clocks, and after a server has been
    away every run would seem silent: so only time in which somebody looked counts.

    Args:
        clock_s: seconds of a clock that runs on.

    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._last_look_s = clock_s()
        self._since_s: dict[tuple[UUID, UUID, datetime | None], float] = {}

    def among(self, runs: Iterable[FlowRun]) -> list[tuple[FlowRun, str]]:
        """Return the runs that are lost by now, each with the reason.

        Args:
            runs: all that may be lost, as Prefect has just told them.

        """
        now_s = self._clock_s()
        before = self._since_s if now_s - self._last_look_s <= LONGEST_GAP_S else {}
        self._last_look_s, self._since_s = now_s, {}
        lost = []
        for run in runs:
            if run.state is None:
                continue
            tells = run.state.is_running() or run.state.is_cancelling()
            seen = (run.id, run.state.id, run.updated if tells else None)
            since_s = self._since_s[seen] = before.get(seen, now_s)
            if why := _lost(run, now_s - since_s):
                lost.append((run, why))
        return lost


def _lost(run: FlowRun, unchanged_s: float) -> str:
    """Say why a run is lost that somebody saw unchanged for so long; "" if it is not."""
    state = run.state
    if state is None:
        return ""
    if state.is_crashed() and unchanged_s >= CRASHED_S:
        recent = datetime.now(UTC) - state.timestamp < CRASHED_WITHIN
        died = f"its worker died ({state.message})" if state.message else "its worker died"
        return died if recent and run.run_count < MOST_STARTS else ""
    if (state.is_running() or state.is_cancelling()) and unchanged_s >= SILENT_S:
        return f"no sign of life for {unchanged_s:.0f} s"
    if state.is_pending() and unchanged_s >= NOT_BEGUN_S:
        return f"a worker took it at least {unchanged_s:.0f} s ago and has not started it"
    return ""


def look_after(ended: threading.Event, every_s: float = LOOK_EVERY_S) -> None:
    """Settle lost shards and nights until `ended`; a server that is away is waited for."""
    lost_runs = LostRuns()
    while not ended.wait(every_s):
        with contextlib.suppress(AutolabelError):
            for run, why in lost_runs.among(list(_may_be_lost())):
                if done := _settle(run, why):
                    log.warning("%s is %s: %s", run.name, done, why)


def _settle(run: FlowRun, why: str) -> str:
    """Schedule a lost run again, or end it if it was being cancelled, unless somebody was faster.

    Returns:
        What was done, as in "the run is ..."; "" if nothing was.

    Raises:
        AutolabelError: Prefect is not there.

    """
    from prefect.states import AwaitingRetry, Cancelled

    with connected() as client:
        now = client.read_flow_run(run.id).state
        if not (now and run.state and now.id == run.state.id):
            return ""
        cancelling = now.is_cancelling()
        then: State = Cancelled(message=why) if cancelling else AwaitingRetry(message=why)
        client.set_flow_run_state(run.id, then, force=True)
    return "cancelled" if cancelling else "scheduled again"


def _may_be_lost() -> Iterator[FlowRun]:
    """Shards and nights of deployments that a worker has taken and that have not ended well."""
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter

    wanted = FlowRunFilter.model_validate(
        {
            "state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING", "CRASHED"]}},
            "deployment_id": {"is_null_": False},
            "expected_start_time": {"after_": datetime.now(UTC) - STARTED_WITHIN},
        }
    )
    return every_page(wanted, FlowFilter.model_validate({"name": {"any_": list(FLOWS)}}))


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
