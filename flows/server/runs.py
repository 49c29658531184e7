"""Flow runs as Prefect knows them: found, counted, given back, cancelled, and lost ones.

A run key is that of every backfill with the same model, boxes and parameters, whatever its sources
and its storage: what is meant of them is told by the storage and by each sequence's content.

Each flow updates its run every half minute, which changes nothing but the time of its last update.
Every `autolabel worker`, and whoever waits for a run, looks for runs that stand still: those of
deployments are scheduled again, those of a command have Crashed. Prefect's own heartbeats and its
automation on missing ones were tried again on PostgreSQL: a run that went on while the server was
killed for two minutes was Crashed 3 s after the server was back, for the server counts the time in
which nobody could tell it anything.
"""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import flow_run
from prefect.states import AwaitingRetry, Cancelled, Completed, Crashed, Failed

from flows.params import LabelParams
from flows.plan.shards import ShardParams
from flows.server.client import asked_once, connected, in_pages, server_time
from sam2_core.backend_choice import fits
from sam2_core.types import AutolabelError
from tasks.observe.progress import LOAD
from tasks.pipeline.outcome import SequenceOutcome
from tasks.processes import repeating
from tasks.store.retry import until_answered
from tasks.wording import counted

# In the state's message; the state itself stays Prefect's own, whose name everybody knows.
NOT_LOADED = "labeled, but not loaded into the dataset"
_LATER = " (the flow load-dataset does it): "
LONGEST = 1000


def ending(
    outcomes: Sequence[SequenceOutcome], text: str, given_up: int, dataset: str | None
) -> State[Any]:
    """Return Failed, with up to three reasons, when some sequence is not complete, else Completed.

    Args:
        outcomes: of every sequence of the run.
        text: what was done.
        given_up: how many of the failed sequences will not be tried again.
        dataset: where the labels were to be loaded.

    """

    def reasons_of(some: Sequence[SequenceOutcome]) -> str:
        return "; ".join(
            f"{one.sequence_id}: {(one.incomplete or one.error)[: LONGEST // 2 // len(some)]}"
            for one in some
        )

    if frames := sum(len(outcome.failures) for outcome in outcomes):
        text += f", in part: {counted(frames, 'frame')} without labels"
    failed = [one for one in outcomes if one.partial or (one.error and one.stage != LOAD)]
    if failed:
        gone = f" ({given_up} of them given up)" if given_up else ""
        text += f", {counted(len(failed), 'sequence')} failed{gone}: {reasons_of(failed[:3])}"
    if unloaded := [one for one in outcomes if one.error and one.stage == LOAD]:
        of = counted(len(outcomes), "sequence")
        text += (
            f"; {len(unloaded)} of {of} {NOT_LOADED} {dataset}{_LATER}{reasons_of(unloaded[:1])}"
        )
    return Failed(message=text) if failed else Completed(message=text)


def why_not_loaded(message: str) -> str:
    """Return why labels were not loaded, as the message of `ending` says it; "" if they were."""
    return message.partition(_LATER)[2]


TAG = "autolabel"  # of every run of ours
SHARD_TAG = "autolabel-shard"
SHARD_DEPLOYMENT = "label-shard/gpu"
# A shard that was started so often, whose workers died or gave it back, is not started again by
# itself.
MOST_STARTS = 20
# What crashed when nobody looked is not older than a weekend's power cut.
CRASHED_WITHIN = timedelta(days=3)
# Until then the worker that is stopping has ended, and cannot take its own shard again.
STOPPED_WITHIN = timedelta(seconds=5)
# What a machine could not do waits so long after the first start of the shard, then longer.
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=10)
# States, as Prefect filters by them: not ended, or crashed, which may be started again.
UNFINISHED = {"type": {"not_any_": ["COMPLETED", "FAILED", "CANCELLED"]}}

log = logging.getLogger(__name__)


def run_tag(run_key: str) -> str:
    """Tag of every shard of a run."""
    return f"run:{run_key}"


def flow_runs(flows: Sequence[str] = (), **wanted: Any) -> Iterator[FlowRun]:
    """Yield flow runs, newest first.

    Args:
        flows: names of their flows; any when empty.
        wanted: fields of Prefect's `FlowRunFilter`, as plain values.

    Raises:
        AutolabelError: Prefect is not there.

    """
    with connected() as client:
        read = partial(
            client.read_flow_runs,
            flow_filter=FlowFilter.model_validate({"name": {"any_": flows}}) if flows else None,
            flow_run_filter=FlowRunFilter.model_validate(wanted),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        )
        yield from in_pages(read)


def runs_of(run_key: str, out_uri: str, *, active_only: bool = False) -> Iterator[FlowRun]:
    """Flow runs of the shards of a run to one storage, newest first.

    With `active_only` those that have not ended: one that crashed has not, because whoever looks
    after it starts it again.

    Raises:
        AutolabelError: Prefect is not there.

    """
    state = UNFINISHED if active_only else None
    for run in flow_runs(tags={"all_": [run_tag(run_key)]}, state=state):
        if out_of(run) == out_uri and not (active_only and stays_crashed(run)):
            yield run


def out_of(run: FlowRun) -> str:
    """Where a run's labels go; "" of what an older version may have been given."""
    params = run.parameters.get("params", {})
    return str(params.get("label", params).get("out", "")) if isinstance(params, dict) else ""


def stays_crashed(run: FlowRun) -> bool:
    """Whether a run has crashed and nobody starts it again."""
    if run.state is None or not run.state.is_crashed():
        return False
    old = datetime.now(UTC) - run.state.timestamp > CRASHED_WITHIN
    return old or run.run_count >= MOST_STARTS


def pause_after(starts: int) -> timedelta:
    """Return how long a shard waits that machines could not do, so many times by now."""
    return min(FIRST_PAUSE * 2.0 ** min(starts - 1, MOST_STARTS), LONGEST_PAUSE)


def give_back(why: str, pause: timedelta = STOPPED_WITHIN) -> bool:
    """Schedule the current flow run again; False where it is being cancelled or is no deployment's.

    A run of a stopped worker stays "Running" until its signs of life are missed; one that ends
    politely need not wait for that.

    Args:
        why: told in its new state.
        pause: how long it waits.

    """
    try:
        with connected() as client:
            run = client.read_flow_run(UUID(flow_run.id))
            if not (run.deployment_id and run.state and run.state.is_running()):
                return False
            due = server_time(client) + pause
            again: State = AwaitingRetry(scheduled_time=due, message=why[:LONGEST])
            client.set_flow_run_state(run.id, again, force=True)
    except AutolabelError as error:
        # The server is away: whoever misses the signs of life schedules the run again.
        log.warning("the shard could not be given back: %s", error)
    return True


def shard_of(run: FlowRun) -> ShardParams:
    """Parameters of a shard's run."""
    return ShardParams.model_validate(run.parameters["params"])


def sequences_in_flight(run_key: str, out_uri: str) -> set[tuple[str, str]]:
    """Sequences, by id and content key, that submitted, unfinished shards still have."""
    return {
        piece.key
        for run in runs_of(run_key, out_uri, active_only=True)
        for piece in shard_of(run).pieces
    }


def counted_states(states: Mapping[str, int]) -> str:
    """Write counts by state, as Prefect names them: 1 AwaitingRetry, 2 Running."""
    return ", ".join(f"{count} {name}" for name, count in sorted(states.items()))


def cancel_backfill(label: LabelParams) -> dict[str, int]:
    """Cancel the unfinished shards that were submitted with these parameters.

    Workers decide the backend and precision of a submission that names none. Shards that run finish
    the chunk at hand; what they wrote stays valid.

    Returns:
        How many shards were cancelled, by run key.

    Raises:
        AutolabelError: Prefect is not there.

    """
    found: Counter[str] = Counter()
    with connected() as client:
        for run in list(flow_runs(tags={"all_": [SHARD_TAG]}, state=UNFINISHED)):
            try:
                shard = shard_of(run)
            except (KeyError, ValueError):  # of an older version
                continue
            if run.state and not stays_crashed(run) and _is_of(shard.label, label):
                waits = run.state.is_scheduled() or run.state.is_crashed()
                kind = StateType.CANCELLED if waits else StateType.CANCELLING
                client.set_flow_run_state(run.id, State(type=kind))
                found[shard.run_key] += 1
    return dict(found)


def _is_of(decided: LabelParams, asked: LabelParams) -> bool:
    """Whether a shard's parameters are those that were asked for, decided by workers."""
    chosen = {"backend": decided.backend, "precision": decided.precision}
    return (
        asked.model_copy(update=chosen) == decided
        and fits(decided.backend, asked.backend)
        and asked.precision in {"auto", decided.precision}
    )


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


def signs_of_life(every_s: float = SIGN_OF_LIFE_S) -> contextlib.AbstractContextManager[None]:
    """Tell Prefect now and then, while the block runs, that the current flow run lives."""

    def tell() -> None:
        with contextlib.suppress(AutolabelError), asked_once(), connected() as client:
            client.update_flow_run(UUID(flow_run.id), tags=flow_run.tags)

    return repeating(tell, every_s) if flow_run.id else contextlib.nullcontext()


def cancel_current() -> None:
    """Have the current flow run, if there is one, be Cancelled; a server that is away is left."""
    if flow_run.id:
        with contextlib.suppress(AutolabelError), asked_once(CANCEL_S), connected() as client:
            state: State = Cancelled(message="stopped by Ctrl-C or SIGTERM; what is labeled stays")
            client.set_flow_run_state(UUID(flow_run.id), state, force=True)


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
    """Schedule a lost run again, or end it if it was being cancelled or nobody would start it.

    Nothing happens where somebody was faster.

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
    for one in begun:
        again = one.deployment_id or not (one.state and one.state.is_crashed())
        if one.state and again and not stays_crashed(one):
            yield one


def watch(
    run_key: str, out_uri: str, poll_s: float, tell: Callable[[str], object] = log.warning
) -> Iterator[list[FlowRun]]:
    """Yield a run's shards that have not ended every `poll_s`, for the last time when all have.

    Args:
        run_key: of the run.
        out_uri: its storage; other storages may get the same run.
        poll_s: seconds between two looks.
        tell: is told of a server that is away.

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
