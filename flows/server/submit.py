"""Shards to Prefect, each submitted once, and the queues and workers that take them."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
from prefect.client.schemas.objects import WorkPool
from prefect.concurrency.asyncio import AcquireConcurrencySlotTimeoutError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from flows.params import LabelParams
from flows.plan.shards import ShardParams
from flows.server.client import asked_once, connected
from flows.server.runs import (
    SHARD_DEPLOYMENT,
    SHARD_TAG,
    run_tag,
)
from sam2_core.types import AutolabelError

# The shortest of Prefect's; measured: one that was killed keeps the next waiting for 73 to 76 s.
LEASE_S, TURN_WITHIN_S = 60.0, 300.0
# Three heartbeats, after which Prefect takes a worker that said nothing for gone.
GONE_AFTER_S = 90
SIGN_OFF_S = 5.0


def submit(
    shards: Sequence[ShardParams],
    name: str,
    *,
    queue: str | None = None,
    on_submitted: Callable[[], object] = lambda: None,
) -> None:
    """Submit shards, in a turn of their run.

    Args:
        shards: what to run.
        name: of the night or backfill, with which their names begin.
        queue: work queue of the deployment's pool; the deployment's own when None.
        on_submitted: called after each.

    Raises:
        AutolabelError: Prefect is not there, or refuses the parameters.

    """
    with connected() as client:
        deployment = client.read_deployment_by_name(SHARD_DEPLOYMENT)
        for number, shard in enumerate(shards, 1):
            client.create_flow_run_from_deployment(
                deployment.id,
                parameters={"params": shard.model_dump(mode="json")},
                name=f"{name}, shard {number} of {len(shards)}",
                tags=[SHARD_TAG, run_tag(shard.run_key)],
                # A request that was answered and is repeated finds its own run.
                idempotency_key=uuid4().hex,
                work_queue_name=queue,
            )
            on_submitted()


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
    digest = hashlib.sha256(f"{run_key} {out_uri}".encode()).hexdigest()[:24]
    name = f"autolabel-submitting-{digest}"
    with connected() as client, contextlib.suppress(ObjectAlreadyExists):
        client.upsert_global_concurrency_limit_by_name(name, 1)
    try:
        with concurrency(name, timeout_seconds=TURN_WITHIN_S, lease_duration=LEASE_S, strict=True):
            yield
    except AcquireConcurrencySlotTimeoutError:
        raise AutolabelError(
            f"another submission of this run has been under way for {TURN_WITHIN_S:.0f} s: try "
            f"again when it has ended. If none is, `prefect gcl update {name} --active-slots 0`"
        ) from None


def ensure_queue(name: str, *, priority: int, concurrency_limit: int | None) -> str:
    """Create or update a work queue of the shard deployment's pool; returns its name."""
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
    online = WorkerFilter(status=WorkerFilterStatus(any_=["ONLINE"]))
    with connected() as client:
        name = pool or pool_of_shards().name
        found = client.read_workers_for_work_pool(name, worker_filter=online)
    return sorted(one.name for one in found)


def sign_off(pool: str, worker: str) -> None:
    """Let Prefect forget a worker that was stopped; else it counts as online for `GONE_AFTER_S`.

    Best effort, for seconds at most: a server that is away keeps nobody from stopping.
    """
    where = {"work_pool_name": quote(pool, safe=""), "name": quote(worker, safe="")}
    # Those of the server: it has forgotten it already.
    with contextlib.suppress(AutolabelError), asked_once(SIGN_OFF_S), connected() as client:
        client.request("DELETE", "/work_pools/{work_pool_name}/workers/{name}", path_params=where)


def lacked(label: LabelParams, run_key: str) -> set[str] | None:
    """Ids of labeled sequences of a run that its dataset lacks; None where nobody here can tell."""
    from tasks.dataset.database import is_at_hand, reach_database
    from tasks.dataset.schema import missing_manifests

    if not label.dataset_name:
        return set()
    try:
        if not is_at_hand():
            return None
        reach_database()
        missing, unreadable = missing_manifests(label.dataset_name, label.out, run_key)
    except AutolabelError:
        return None
    return {one.sequence_id for one in missing} | {one.partition(": ")[0] for one in unreadable}
