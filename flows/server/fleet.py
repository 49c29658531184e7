"""Shards to the workers of a pool: each submitted once, labeled alike by any of them.

What the workers of a pool label with is decided before, for a backfill's key names it. A plan is
often made where there is no GPU, and each shard's worker would refuse a key that was made of the
planning machine's backend. So the pool says it, best first, in a variable of its template. The
first worker that comes writes it there, and one that does not offer the same is refused while
others are online. A pool of containers says it from the start.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote
from uuid import uuid4

from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import WorkerFilter
from prefect.client.schemas.objects import WorkPool
from prefect.concurrency.asyncio import AcquireConcurrencySlotTimeoutError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from flows.machine.programs import CPU_POOL, GPU_POOL
from flows.params import LabelParams
from flows.plan.shards import ShardParams
from flows.server.client import asked_once, connected
from flows.server.deployments import ensure_pools, job_template
from flows.server.prefect_runs import SHARD_DEPLOYMENT, SHARD_TAG, run_tag
from sam2_core.backend_choice import (
    BEST_FIRST,
    EXTRAS,
    choose_backend,
    fits,
    needs_gpu,
    offered_backends,
    precision_of,
)
from sam2_core.devices import refuse_if_gone
from sam2_core.types import AutolabelError
from tasks.masks.model import TRITON, asked_for

# The shortest of Prefect's; measured: one that was killed keeps the next waiting for 73 to 76 s.
LEASE_S, TURN_WITHIN_S = 60.0, 300.0
# Three heartbeats, after which Prefect takes a worker that said nothing for gone.
GONE_AFTER_S = 90
SIGN_OFF_S = 5.0
CPU, CUDA = "onnxruntime-cpu", "onnxruntime-cuda"
# Of a pool's template: what its flow runs can label with, best first, + between.
POOL_VARIABLE = "backends"
DOCTOR = "On a worker's machine `autolabel doctor` says what to install"


class FleetError(AutolabelError):
    """Workers do not offer what is asked for, or not what the others of their pool do."""


def join(pool_name: str, worker: str, offers: Sequence[str]) -> None:
    """Have a pool say what its workers offer; refuse one that is unlike those that are online.

    Args:
        pool_name: work pool.
        worker: name of the one that is about to work.
        offers: backends that it can label with, best first.

    Raises:
        FleetError: the others of its pool offer something else.
        AutolabelError: Prefect is not there, or has no such pool.

    """
    with connected() as client:
        try:
            pool = client.read_work_pool(pool_name)
        except ObjectNotFound:  # `up` starts workers before it has made their pools
            ensure_pools({pool_name} & {GPU_POOL, CPU_POOL})
            pool = client.read_work_pool(pool_name)
        said = _said_by(pool)
        if said == tuple(offers):
            return
        others = [name for name in workers_online(pool_name) if name != worker]
        if said and others:
            raise FleetError(
                f"all workers of pool {pool_name} label with {', '.join(said)}, and this one "
                f"offers {', '.join(offers)}. {DOCTOR}. Give it a pool of its own (--pool), or "
                f"stop the others ({', '.join(others)}; one that was killed counts for up to "
                f"{GONE_AFTER_S} s)"
            )
        template = pool.base_job_template or job_template()
        template["variables"].setdefault("properties", {})[POOL_VARIABLE] = {
            "title": "Backends",
            "description": "What the pool's workers label with, best first; they write it.",
            "type": "string",
            "default": "+".join(offers),
        }
        client.update_work_pool(pool_name, WorkPoolUpdate(base_job_template=template))


def decided(label: LabelParams) -> LabelParams:
    """Return the parameters with a backend and a precision that the pool's workers provide.

    Raises:
        FleetError: they do not offer what is asked for; or the pool does not say what they offer,
            and no backend was named.

    """
    # Servers run Triton's models, and plans ask them; every worker can use its processor.
    if label.backend in {TRITON, CPU}:
        return _exactly(label, label.backend)
    pool = pool_of_shards()
    offers = _said_by(pool)
    if not offers and label.backend in BEST_FIRST:
        return _exactly(label, label.backend)  # nothing speaks against it
    if not offers:
        raise FleetError(
            f"pool {pool.name} does not say what its workers can label with, and labels are named "
            "by that: start the first worker with `autolabel worker` (`autolabel status` says if "
            f"it is refused), or say it with --backend, for instance --backend {CUDA}"
        )
    asked = asked_for(label.model, label.backend)
    for backend in offers:
        if fits(backend, asked):
            return _exactly(label, backend)
    # TensorRT and PyTorch are asked for by name, ONNX Runtime by the model, too.
    wanted = label.backend if label.backend in BEST_FIRST else CUDA
    raise FleetError(
        f"the workers of pool {pool.name} label with {', '.join(offers)}, not with {wanted}: name "
        f"another --backend ({CPU} uses processors), or start others. {DOCTOR}"
    )


def as_here(label: LabelParams) -> LabelParams:
    """Return the parameters as a worker would have them that is like this machine."""
    return _exactly(label, choose_backend(asked_for(label.model, label.backend))[0])


def _exactly(label: LabelParams, backend: str) -> LabelParams:
    if backend == TRITON:
        return label
    precision = precision_of(backend) if label.precision == "auto" else label.precision
    return label.model_copy(update={"backend": backend, "precision": precision})


def _said_by(pool: WorkPool) -> tuple[str, ...]:
    variables = pool.base_job_template.get("variables", {}).get("properties", {})
    said = str(variables.get(POOL_VARIABLE, {}).get("default", "")).split("+")
    return tuple(backend for backend in said if backend in BEST_FIRST)


def refuse_unless_offered(backend: str, precision: str = "fp16") -> None:
    """Refuse a shard whose labels this worker cannot make.

    Args:
        backend: that its labels are made with.
        precision: of the same.

    Raises:
        FleetError: its backend needs a GPU that is not here, or software that is not.
        DeviceLostError: the GPU is gone that was here when this worker was started.

    """
    if backend in EXTRAS:
        refuse_if_gone()
    if not needs_gpu(backend, precision) or backend in (offers := offered_backends()):
        return
    raise FleetError(
        f"this worker cannot run {backend} in {precision}, which this shard's labels have to be "
        f"made with: it offers {', '.join(offers)}. {DOCTOR}"
    )


def submit(
    shards: Sequence[ShardParams],
    name: str,
    *,
    on_submitted: Callable[[], object] = lambda: None,
) -> None:
    """Submit shards, in a turn of their run.

    Args:
        shards: what to run.
        name: of the night or backfill, with which their names begin.
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
            )
            on_submitted()


@contextlib.contextmanager
def turn_of(run_key: str, out_uri: str) -> Iterator[None]:
    """Wait until no other submission of a run to a storage is under way; keep others out.

    Who submits reads what is under way and adds what is not; two at once would both read that
    nothing is. A lease of Prefect's ends with a killed process. Prefect's server has to keep
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
    online = WorkerFilter.model_validate({"status": {"any_": ["ONLINE"]}})
    with connected() as client:
        found = client.read_workers_for_work_pool(
            pool or pool_of_shards().name, worker_filter=online
        )
    return sorted(worker.name for worker in found)


def sign_off(pool: str, worker: str) -> None:
    """Let Prefect forget a worker that was stopped; else it counts as online for `GONE_AFTER_S`.

    Best effort, for seconds at most: a worker stops also while the server is away.
    """
    where = {"work_pool_name": quote(pool, safe=""), "name": quote(worker, safe="")}
    # Those of the server: it has forgotten it already.
    with contextlib.suppress(AutolabelError), asked_once(SIGN_OFF_S), connected() as client:
        client.request("DELETE", "/work_pools/{work_pool_name}/workers/{name}", path_params=where)
