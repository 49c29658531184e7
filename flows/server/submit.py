"""Shards to Prefect, each submitted once, and the queues and workers that take them.

Prefect's idempotency key alone is not enough: it ignores changed parameters and gives back a
failed run as it is. So the key hashes all parameters, and where the run behind it has ended, the
next key in the chain is tried. What was cut otherwise has other keys: `turn_of` keeps submissions
of one run apart, and a request that was answered and repeated meets its own shard here.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID, uuid4

from flows.plan.shards import ShardParams
from flows.server.client import asked_once, connected
from flows.server.shard_runs import MOST_STARTS, SHARD_DEPLOYMENT, SHARD_TAG, run_tag
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import WorkPool

_LONGEST_CHAIN = 50
# The shortest of Prefect's; measured: one that was killed keeps the next waiting for 73 to 76 s.
LEASE_S, TURN_WITHIN_S = 60.0, 300.0
# Three heartbeats, after which Prefect takes a worker that said nothing for gone.
GONE_AFTER_S = 90
SIGN_OFF_S = 5.0


def submit(
    shards: Sequence[ShardParams],
    *,
    queue: str | None = None,
    on_submitted: Callable[[], object] = lambda: None,
) -> dict[str, int]:
    """Submit every shard that is not under way.

    Args:
        shards: what to run.
        queue: work queue of the deployment's pool; the deployment's own when None.
        on_submitted: called after each.

    Returns:
        `submitted`: how many are new; `met`: sequences of those that were under way already.

    Raises:
        AutolabelError: Prefect is not there, or refuses the parameters.

    """
    new, met = 0, set[str]()
    if shards:
        with connected() as client:
            deployment = client.read_deployment_by_name(SHARD_DEPLOYMENT)
            for shard in shards:
                if _submit_one(client, deployment.id, shard, queue):
                    new += 1
                else:
                    met |= {piece.sequence_id for piece in shard.pieces}
                on_submitted()
    return {"submitted": new, "met": len(met)}


def _submit_one(
    client: SyncPrefectClient, deployment_id: UUID, shard: ShardParams, queue: str | None
) -> bool:
    """Submit a shard; False where another submission of it was met."""
    from prefect.states import AwaitingRetry

    key, mark = shard.key, uuid4().hex
    name = f"{shard.pieces[0].sequence_id}+{len(shard.pieces) - 1}-{key[:6]}"
    for _ in range(_LONGEST_CHAIN):
        run = client.create_flow_run_from_deployment(
            deployment_id,
            parameters={"params": shard.model_dump(mode="json")},
            name=name,
            tags=[SHARD_TAG, run_tag(shard.run_key)],
            idempotency_key=key,
            work_queue_name=queue,
            labels={"autolabel.submission": mark},
        )
        if run.state is None or not run.state.is_final():
            return run.labels.get("autolabel.submission") == mark
        if run.state.is_crashed() and run.run_count < MOST_STARTS:
            # What whoever finds a lost run does too; a second run of the shard would race with it.
            client.set_flow_run_state(run.id, AwaitingRetry(message="submitted again"), force=True)
            return True
        key = hashlib.sha256(f"{key} after {run.id}".encode()).hexdigest()[:24]
    raise AutolabelError(
        f"shard {name} has ended {_LONGEST_CHAIN} times without labeling everything: look at "
        "`autolabel status` for the reason"
    )


@contextlib.contextmanager
def turn_of(run_key: str, out_uri: str) -> Iterator[None]:
    """Wait until no other submission of a run to a storage is under way; keep others out.

    Who submits reads what is under way and adds what is not; two at once would both read that
    nothing is. A lease of Prefect's ends with whoever was killed. Prefect's server has to keep
    leases on disk: of those in its memory, which is its default, one that it forgot when it was
    killed kept the next submission waiting for ever.

    Args:
        run_key: of the run.
        out_uri: its storage; other storages may get the same run at the same time.

    Raises:
        AutolabelError: Prefect is not there, or another submission does not end.

    """
    from prefect.concurrency.sync import concurrency
    from prefect.exceptions import ObjectAlreadyExists

    digest = hashlib.sha256(f"{run_key} {out_uri}".encode()).hexdigest()[:24]
    name = f"autolabel-submitting-{digest}"
    with connected() as client, contextlib.suppress(ObjectAlreadyExists):
        client.upsert_global_concurrency_limit_by_name(name, 1)
    with contextlib.ExitStack() as held:
        turn = concurrency(name, timeout_seconds=TURN_WITHIN_S, lease_duration=LEASE_S, strict=True)
        try:
            held.enter_context(turn)
        except TimeoutError:
            raise AutolabelError(
                f"another submission of this run has been under way for {TURN_WITHIN_S:.0f} s: try "
                f"again when it has ended. If none is, `prefect gcl update {name} --active-slots 0`"
            ) from None
        yield


def ensure_queue(name: str, *, priority: int, concurrency_limit: int | None) -> str:
    """Create or update a work queue of the shard deployment's pool; returns its name."""
    from prefect.exceptions import ObjectNotFound

    with connected() as client:
        pool = client.read_deployment_by_name(SHARD_DEPLOYMENT).work_pool_name
        values: dict[str, Any] = {"priority": priority, "concurrency_limit": concurrency_limit}
        try:
            queue = client.read_work_queue_by_name(name, work_pool_name=pool)
        except ObjectNotFound:
            client.create_work_queue(name=name, work_pool_name=pool, **values)
        else:
            client.update_work_queue(queue.id, **values)
    return name


def pool_of_shards() -> WorkPool:
    """Return the work pool that shards run on.

    Raises:
        AutolabelError: Prefect is not there, or has no deployment of shards.

    """
    with connected() as client:
        name = client.read_deployment_by_name(SHARD_DEPLOYMENT).work_pool_name
        return client.read_work_pool(name or "")


def workers_online(pool: str | None = None) -> list[str]:
    """Names of a pool's workers that are online, sorted.

    Args:
        pool: work pool; the one of the shards when None.

    Raises:
        AutolabelError: Prefect is not there, or has no deployment of shards.

    """
    from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus

    online = WorkerFilter(status=WorkerFilterStatus(any_=["ONLINE"]))
    with connected() as client:
        pool = pool or client.read_deployment_by_name(SHARD_DEPLOYMENT).work_pool_name
        found = client.read_workers_for_work_pool(pool or "", worker_filter=online)
    return sorted(one.name for one in found)


def sign_off(pool: str, workers: Sequence[str]) -> None:
    """Let Prefect forget workers that were stopped; else they count as online for `GONE_AFTER_S`.

    Best effort, for seconds at most: a server that is away keeps nobody from stopping.
    """
    from prefect.exceptions import PrefectHTTPStatusError

    with contextlib.suppress(AutolabelError), asked_once(SIGN_OFF_S), connected() as client:
        for one in workers:
            where = {"work_pool_name": quote(pool, safe=""), "name": quote(one, safe="")}
            with contextlib.suppress(PrefectHTTPStatusError):  # the server has forgotten it already
                client.request(
                    "DELETE", "/work_pools/{work_pool_name}/workers/{name}", path_params=where
                )
