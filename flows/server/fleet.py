"""What the workers of a pool label with: a backfill's key names it, so it is decided before.

A plan is often made where there is no GPU, and each shard's worker would refuse a key that was made
of the planning machine's backend. Our workers tell in their names what they offer, best first; a
pool of containers may tell in its template.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from flows.machine.worker import AND, OFFERS
from flows.params import LabelParams
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

if TYPE_CHECKING:
    from prefect.client.schemas.objects import WorkPool

Offers = dict[str, tuple[str, ...]]  # backends by worker, best first
CPU, CUDA = "onnxruntime-cpu", "onnxruntime-cuda"
# A worker that has just been started tests its device first.
STARTING_S = 60.0
LOOK_EVERY_S = 2.0
# Of a pool's template: what its flow runs can label with, + between.
POOL_VARIABLE = "backends"
_GHOSTS = f"; one that was killed counts as online for up to {GONE_AFTER_S} s"

log = logging.getLogger(__name__)


class FleetError(AutolabelError):
    """The workers differ, or do not offer what is asked for."""


class UntoldError(FleetError):
    """No worker tells what it offers, and no backend was named."""


def decided(
    label: LabelParams, online: Offers | None = None, *, wait_s: float = STARTING_S
) -> LabelParams:
    """Return the parameters with a backend and a precision that the pool's workers provide.

    Args:
        label: what was asked for.
        online: what each worker offers; Prefect is asked when None.
        wait_s: the longest to wait for a worker that tells, where no backend was named.

    Raises:
        UntoldError: no backend was named, and no worker tells what it offers.
        FleetError: the workers differ, or do not offer what is asked for.

    """
    if label.backend == TRITON:  # not the workers': servers run it, and plans ask them
        return label
    if online is None:
        online = _offers(0 if label.backend in BEST_FIRST else wait_s)
    # Every worker can use its processor, also one that tells of its GPU only.
    backend = CPU if label.backend == CPU else _common(label, online)
    _refuse_unlike_detectors(label, backend, online)
    return _exactly(label, backend)


def as_here(label: LabelParams) -> LabelParams:
    """Return the parameters as a worker would have them that is like this machine."""
    return _exactly(label, choose_backend(asked_for(label.model, label.backend))[0])


def _exactly(label: LabelParams, backend: str) -> LabelParams:
    if backend == TRITON:
        return label
    precision = precision_of(backend) if label.precision == "auto" else label.precision
    return label.model_copy(update={"backend": backend, "precision": precision})


def _offers(wait_s: float) -> Offers:
    """Ask what workers offer, until one tells or time is up."""
    deadline, told = time.monotonic() + wait_s, False
    while True:
        online = {
            name.partition(OFFERS)[0]: offers
            for name in workers_online()
            if (offers := _backends_in(name.partition(OFFERS)[2]))
        }
        if online:
            return online
        pool = pool_of_shards()
        if of_pool := _of_template(pool):
            return {f"pool {pool.name}": of_pool}
        if pool.type != "process" or time.monotonic() >= deadline:
            return {}
        if not told:
            log.warning("waiting for a worker of pool %s that tells what it offers", pool.name)
            told = True
        time.sleep(LOOK_EVERY_S)


def _of_template(pool: WorkPool) -> tuple[str, ...]:
    variables = pool.base_job_template.get("variables", {}).get("properties", {})
    return _backends_in(str(variables.get(POOL_VARIABLE, {}).get("default", "")))


def _backends_in(text: str) -> tuple[str, ...]:
    return tuple(one for one in text.split(AND) if one in BEST_FIRST)


def refuse_what_nobody_will_tell(label: LabelParams) -> None:
    """Refuse parameters for later whose backend no worker of this pool's kind can tell then.

    Raises:
        UntoldError: they name none, and workers of this kind do not tell.

    """
    if label.backend in {*BEST_FIRST, TRITON}:
        return
    try:
        pool = pool_of_shards()
    except AutolabelError:  # there is no deployment of shards, as yet: `doubt` says so
        return
    if pool.type != "process" and not _of_template(pool):
        raise UntoldError(
            f"workers of pool {pool.name} ({pool.type}) do not tell what they can label with: say "
            f"it with --backend, for instance --backend {CUDA}"
        )


def doubt(label: LabelParams) -> str:
    """Say why a run would be refused if its workers were those that are online now.

    Returns:
        The reason; "" where there is none, or none of them tells what it offers.

    """
    try:
        if label.backend != TRITON and (online := _offers(0)):
            decided(label, online)
    except AutolabelError as error:  # or Prefect has no deployment of shards, as yet
        return str(error)
    return ""


def _common(label: LabelParams, online: Offers) -> str:
    """Return the best backend that was asked for of all workers."""
    asked = asked_for(label.model, label.backend)
    if not online and label.backend in BEST_FIRST:
        return label.backend  # nobody tells otherwise
    chosen = {
        name: next((one for one in offers if fits(one, asked)), "")
        for name, offers in online.items()
    }
    found = set(chosen.values())
    if not found:
        raise UntoldError(
            "no worker that is online tells what it can label with, and labels are named by that: "
            "start one with `autolabel worker` (`autolabel status` says if one is refused), or say "
            f"what all workers have to use with --backend, for instance --backend {CUDA}"
        )
    if found == {""}:  # TensorRT and PyTorch are asked for by name, ONNX Runtime by the model, too
        wanted = label.backend if label.backend in BEST_FIRST else CUDA
        raise FleetError(
            f"no worker that is online offers {wanted}: {_told(online)}. Start one that does, or "
            f"name another --backend ({CPU} uses processors){_GHOSTS}. {_missing(wanted)}"
        )
    if len(found) > 1:
        lacking = [name for name, backend in chosen.items() if not backend]
        differ = {name: (chosen[name],) if chosen[name] else online[name] for name in online}
        raise FleetError(
            f"{'not every worker offers what is asked for' if lacking else 'the workers differ'}, "
            f"and labels of one run are made by one backend: {_told(differ)}. Say which with "
            f"--backend (all workers must offer it), or stop the others{_GHOSTS}"
        )
    return found.pop()


def _refuse_unlike_detectors(label: LabelParams, backend: str, online: Offers) -> None:
    """Refuse workers whose boxes differ: on PyTorch the detector needs ONNX Runtime for the GPU."""
    lacking = {name: offers for name, offers in online.items() if CUDA not in offers}
    if backend == "torch" and not label.boxes and 0 < len(lacking) < len(online):
        raise FleetError(
            "the detector would use the processor of some workers and the GPU of the others, and "
            f"find other boxes: {_told(lacking)} without {CUDA}. {_missing(CUDA)}, or stop "
            f"those{_GHOSTS}"
        )


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
    return f"The extra {EXTRAS[backend]} brings it to a machine with a GPU: " + how_to_install(
        EXTRAS[backend]
    )


def _told(online: Offers) -> str:
    return "; ".join(sorted(f"{name} has {', '.join(has)}" for name, has in online.items()))
