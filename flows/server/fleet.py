"""What the workers of a pool label with: a backfill's key names it, so it is decided before.

A plan is often made where there is no GPU, and each shard's worker would refuse a key that was made
of the planning machine's backend. So the pool says it, best first, in a variable of its template.
The first worker that comes writes it there, and one that does not offer the same is refused while
others are online. A pool of containers says it from the start.
"""

from collections.abc import Sequence

from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import WorkPool
from prefect.exceptions import ObjectNotFound

from flows.params import LabelParams
from flows.server.client import connected
from flows.server.deployments import job_template
from flows.server.submit import GONE_AFTER_S, pool_of_shards, workers_online
from sam2_core.backend_choice import (
    BEST_FIRST,
    EXTRAS,
    choose_backend,
    fits,
    needs_gpu,
    offered_backends,
    precision_of,
    refuse_if_gone,
)
from sam2_core.machine import how_to_install
from sam2_core.types import AutolabelError
from tasks.masks.model import TRITON, asked_for

CPU, CUDA = "onnxruntime-cpu", "onnxruntime-cuda"
# Of a pool's template: what its flow runs can label with, best first, + between.
POOL_VARIABLE = "backends"


class FleetError(AutolabelError):
    """Workers do not offer what is asked for, or not what the others of their pool do."""


class UntoldError(FleetError):
    """The pool does not say what its workers offer, and no backend was named."""


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
        except ObjectNotFound:
            why = f"there is no work pool {pool_name}: `prefect work-pool create` makes one"
            raise AutolabelError(why) from None
        said = _said_by(pool)
        if said == tuple(offers):
            return
        others = [one for one in workers_online(pool_name) if one != worker]
        if said and others:
            raise FleetError(_unlike(pool_name, said, offers, others))
        template = pool.base_job_template or job_template()
        template["variables"].setdefault("properties", {})[POOL_VARIABLE] = {
            "title": "Backends",
            "description": "What the pool's workers label with, best first; they write it.",
            "type": "string",
            "default": "+".join(offers),
        }
        client.update_work_pool(pool_name, WorkPoolUpdate(base_job_template=template))


def _unlike(pool: str, said: Sequence[str], offers: Sequence[str], others: Sequence[str]) -> str:
    """Say how a worker can become like the others of its pool."""
    missing = [_missing(one) for one in said if one not in offers and one in EXTRAS]
    return " ".join([
        f"all workers of pool {pool} label with {', '.join(said)}, and this one offers "
        f"{', '.join(offers)}.", *missing, "Give it a pool of its own (--pool), or stop the "
        f"others ({', '.join(others)}; one that was killed counts for up to {GONE_AFTER_S} s)",
    ])  # fmt: skip


def decided(label: LabelParams) -> LabelParams:
    """Return the parameters with a backend and a precision that the pool's workers provide.

    Raises:
        UntoldError: no backend was named, and the pool does not say what its workers offer.
        FleetError: they do not offer what is asked for.

    """
    # Servers run Triton's models, and plans ask them; every worker can use its processor.
    if label.backend in {TRITON, CPU}:
        return _exactly(label, label.backend)
    pool = pool_of_shards()
    offers = _said_by(pool)
    if not offers and label.backend in BEST_FIRST:
        return _exactly(label, label.backend)  # nobody says otherwise
    if not offers:
        raise UntoldError(
            f"pool {pool.name} does not say what its workers can label with, and labels are named "
            "by that: start the first worker with `autolabel worker` (`autolabel status` says if "
            f"it is refused), or say it with --backend, for instance --backend {CUDA}"
        )
    asked = asked_for(label.model, label.backend)
    for one in offers:
        if fits(one, asked):
            return _exactly(label, one)
    # TensorRT and PyTorch are asked for by name, ONNX Runtime by the model, too.
    wanted = label.backend if label.backend in BEST_FIRST else CUDA
    raise FleetError(
        f"the workers of pool {pool.name} label with {', '.join(offers)}, not with {wanted}: name "
        f"another --backend ({CPU} uses processors), or start others. {_missing(wanted)}"
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
    text = str(variables.get(POOL_VARIABLE, {}).get("default", ""))
    return tuple(one for one in text.split("+") if one in BEST_FIRST)


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
        f"made with: it offers {', '.join(offers)}. `autolabel doctor` there says what is missing"
    )


def _missing(backend: str) -> str:
    extra = EXTRAS[backend]
    return f"The extra {extra} brings it to a machine with a GPU: {how_to_install(extra)}"
