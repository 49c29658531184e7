"""Shards and Prefect: submitting each once, asking how they are, cancelling them.

Prefect's idempotency key alone is not enough: it ignores changed parameters and gives back a
failed run as it is. So the key hashes all parameters, and where the run behind it has ended, the
next key in the chain is tried: two backfills that submit at once walk the same chain and meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from flows.shards import ShardParams
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

SHARD_FLOW = "label-shard"
SHARD_TAG = "autolabel-shard"
SHARD_DEPLOYMENT = f"{SHARD_FLOW}/gpu"
# A shard whose workers died so often is not started again by itself: see `flows.automations`.
MOST_STARTS = 20
RESCHEDULED_WITHIN = timedelta(seconds=60)
PAGE = 200
_LONGEST_CHAIN = 50


class ServerAwayError(AutolabelError):
    """Prefect's API does not answer, or not now."""


@dataclass(frozen=True)
class Submitted:
    """A shard as Prefect knows it.

    Attributes:
        flow_run_id: its run.
        name: the run's name.
        new: False where another submission of the same shard was met.

    """

    flow_run_id: UUID
    name: str
    new: bool


def run_tag(run_key: str) -> str:
    """Tag of every shard of a run."""
    return f"run:{run_key}"


def explained(call: Callable[[], Any]) -> Any:
    """Call Prefect; say what to do when it is not there."""
    import httpx
    from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

    try:
        return call()
    except ObjectNotFound as error:
        raise AutolabelError(
            f"Prefect has no deployment {SHARD_DEPLOYMENT}: run `autolabel up` on a workstation, "
            "or `prefect deploy --all --prefect-file deploy/prefect.yaml`"
        ) from error
    except PrefectHTTPStatusError as error:
        status = error.response.status_code
        if status in {401, 403}:
            raise AutolabelError(
                "Prefect's API refused these credentials: set PREFECT_API_AUTH_STRING to what the "
                "server was started with"
            ) from error
        kind = ServerAwayError if status >= 500 else AutolabelError
        raise kind(f"Prefect's API answered {status}: {error.response.text[:500]}") from error
    except httpx.HTTPError as error:
        raise ServerAwayError(
            f"Prefect's API does not answer ({type(error).__name__}): start one with `autolabel "
            "up`, or set PREFECT_API_URL to a running server"
        ) from error


def submit(
    shards: Sequence[ShardParams],
    *,
    queue: str | None = None,
    tags: Sequence[str] = (),
    on_submitted: Callable[[Submitted], object] = lambda _: None,
) -> list[Submitted]:
    """Submit every shard that is not under way.

    Args:
        shards: what to run.
        queue: work queue of the deployment's pool; the deployment's own when None.
        tags: more tags of the runs.
        on_submitted: called after each.

    Raises:
        AutolabelError: Prefect is not there, or refuses the parameters.

    """
    from prefect.client.orchestration import get_client

    submitted: list[Submitted] = []
    if not shards:
        return submitted
    with get_client(sync_client=True) as client:
        deployment = explained(lambda: client.read_deployment_by_name(SHARD_DEPLOYMENT))
        for shard in shards:
            one = explained(partial(_submit_one, client, deployment.id, shard, queue, tags))
            submitted.append(one)
            on_submitted(one)
    return submitted


def _submit_one(
    client: SyncPrefectClient,
    deployment_id: UUID,
    shard: ShardParams,
    queue: str | None,
    tags: Sequence[str],
) -> Submitted:
    from prefect.states import Scheduled

    key, mark = shard.key, uuid4().hex
    name = f"{shard.pieces[0].sequence_id}+{len(shard.pieces) - 1}-{key[:6]}"
    for _ in range(_LONGEST_CHAIN):
        run = client.create_flow_run_from_deployment(
            deployment_id,
            parameters={"params": shard.model_dump(mode="json")},
            name=name,
            tags=[SHARD_TAG, run_tag(shard.run_key), *tags],
            idempotency_key=key,
            work_queue_name=queue,
            labels={"autolabel.submission": mark},
        )
        if run.state is None or not run.state.is_final():
            new = run.labels.get("autolabel.submission") == mark
            return Submitted(run.id, run.name, new)
        if run.state.is_crashed() and run.run_count < MOST_STARTS:
            # What the server's automation does too; a second run of the shard would race with it.
            again: State[Any] = Scheduled(name="AwaitingRetry", message="submitted again")
            client.set_flow_run_state(run.id, again, force=True)
            return Submitted(run.id, run.name, new=True)
        key = hashlib.sha256(f"{key} after {run.id}".encode()).hexdigest()[:24]
    raise AutolabelError(
        f"shard {name} has ended {_LONGEST_CHAIN} times without labeling everything: look at "
        "`autolabel status` for the reason"
    )


def runs_of(
    run_key: str, *, active_only: bool = False, unfinished_or_crashed: bool = False
) -> Iterator[FlowRun]:
    """Flow runs of the shards of a run, newest first; see `runs_tagged`.

    Raises:
        AutolabelError: Prefect is not there.

    """
    found = runs_tagged(
        run_tag(run_key), unfinished_or_crashed=active_only or unfinished_or_crashed
    )
    return (run for run in found if not (active_only and _stays_crashed(run)))


def runs_tagged(
    tag: str, *, unfinished_or_crashed: bool = False, since: datetime | None = None
) -> Iterator[FlowRun]:
    """Flow runs with a tag, newest first.

    Args:
        tag: all of them have it.
        unfinished_or_crashed: only those. (`active_only` of `runs_of`: those that have not ended;
            one that crashed just now has not, because it is about to be scheduled again.)
        since: only those expected to start from here on.

    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterExpectedStartTime,
        FlowRunFilterState,
        FlowRunFilterStateType,
        FlowRunFilterTags,
    )
    from prefect.client.schemas.objects import TERMINAL_STATES, StateType
    from prefect.client.schemas.sorting import FlowRunSort

    state = None
    if unfinished_or_crashed:
        final = [one for one in TERMINAL_STATES if one != StateType.CRASHED]
        state = FlowRunFilterState(type=FlowRunFilterStateType(not_any_=final))
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[tag]),
        state=state,
        expected_start_time=since and FlowRunFilterExpectedStartTime(after_=since),
    )
    with get_client(sync_client=True) as client:
        offset = 0
        while True:
            page: list[FlowRun] = explained(
                partial(
                    client.read_flow_runs,
                    flow_run_filter=wanted,
                    sort=FlowRunSort.EXPECTED_START_TIME_DESC,
                    limit=PAGE,
                    offset=offset,
                )
            )
            yield from page
            if len(page) < PAGE:
                return
            offset += PAGE


def _stays_crashed(run: FlowRun) -> bool:
    """Whether a run has crashed and nothing is going to start it again by itself."""
    if run.state is None or not run.state.is_crashed():
        return False
    old = datetime.now(UTC) - run.state.timestamp > RESCHEDULED_WITHIN
    return old or run.run_count >= MOST_STARTS


def shard_of(run: FlowRun) -> ShardParams:
    """Parameters of a shard's run."""
    return ShardParams.model_validate(run.parameters["params"])


def sequences_in_flight(run_key: str) -> set[str]:
    """Ids of the sequences that submitted, unfinished shards still have."""
    return {
        piece.sequence_id
        for run in runs_of(run_key, active_only=True)
        for piece in shard_of(run).pieces
    }


def cancel(run_key: str) -> int:
    """Cancel every unfinished shard of a run; returns how many.

    Shards that run finish the chunk at hand; what they wrote stays valid.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import State, StateType

    cancelled = 0
    active = list(runs_of(run_key, active_only=True))
    with get_client(sync_client=True) as client:
        for run in active:
            state = run.state
            waiting = state is not None and (state.is_scheduled() or state.is_crashed())
            kind = StateType.CANCELLED if waiting else StateType.CANCELLING
            explained(partial(client.set_flow_run_state, run.id, State(type=kind)))
            cancelled += 1
    return cancelled


def ensure_queue(name: str, *, priority: int, concurrency_limit: int | None) -> str:
    """Create or update a work queue of the shard deployment's pool; returns its name."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        deployment = explained(lambda: client.read_deployment_by_name(SHARD_DEPLOYMENT))
        pool = deployment.work_pool_name
        values: dict[str, Any] = {"priority": priority, "concurrency_limit": concurrency_limit}
        try:
            queue = client.read_work_queue_by_name(name, work_pool_name=pool)
        except ObjectNotFound:
            client.create_work_queue(name=name, work_pool_name=pool, **values)
        else:
            explained(lambda: client.update_work_queue(queue.id, **values))
    return name


def workers_online(pool: str | None = None) -> list[str]:
    """Names of a pool's workers that are online, sorted.

    Args:
        pool: work pool; the one of the shards when None.

    Raises:
        AutolabelError: Prefect is not there, or has no deployment of shards.

    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus

    online = WorkerFilter(status=WorkerFilterStatus(any_=["ONLINE"]))
    with get_client(sync_client=True) as client:
        if pool is None:
            deployment = explained(lambda: client.read_deployment_by_name(SHARD_DEPLOYMENT))
            pool = deployment.work_pool_name
        found = explained(lambda: client.read_workers_for_work_pool(pool, worker_filter=online))
    return sorted(one.name for one in found)


def counts(runs: Iterable[FlowRun]) -> dict[str, int]:
    """Count runs by state name."""
    found: dict[str, int] = {}
    for run in runs:
        name = (run.state and run.state.name) or "Unknown"
        found[name] = found.get(name, 0) + 1
    return found
