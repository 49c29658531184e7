"""What the workers of a pool label with: a backfill's key names it, so it is decided before.

A plan is often made where there is no GPU, and each shard's worker would refuse a key that was made
of the planning machine's backend. Our workers tell in their names what they offer, best first.
"""

from __future__ import annotations

from flows.machine.offers import OFFERS, offers_of
from flows.params import LabelParams
from flows.server.submit import GONE_AFTER_S, workers_online
from sam2_core.load import BEST_FIRST, choose_backend, fits, offered_backends, precision_of
from sam2_core.resolve import Wanted
from sam2_core.types import AutolabelError
from tasks.masks.model import TRITON, graphs_only

Offers = dict[str, tuple[str, ...]]  # backends by worker, best first
_GHOSTS = f"; one that was killed counts as online for up to {GONE_AFTER_S} s"


class FleetError(AutolabelError):
    """The workers differ, or do not offer what is asked for."""


def decided(label: LabelParams, online: Offers | None = None) -> LabelParams:
    """Return the parameters with a backend and a precision that the pool's workers provide.

    Where no worker is online that tells, this machine is taken as an example.

    Args:
        label: what was asked for.
        online: what each worker offers; Prefect is asked when None.

    Raises:
        FleetError: the workers differ, or do not offer what is asked for.

    """
    if online is None:
        online = {name: offers for name in workers_online() if (offers := offers_of(name))}
    if (label.backend, label.precision) != ("auto", "auto") and label.backend in BEST_FIRST:
        _refuse_if_absent(label.backend, online)
        precision = label.precision
        exact = precision_of(label.backend) if precision == "auto" else precision
        return label.model_copy(update={"precision": exact})
    if label.backend == TRITON:  # not the workers': servers run it, and plans ask them
        return label
    # "auto" as this machine would take it; workers have what it has, or fail.
    without_torch = graphs_only(label.model, Wanted())
    chosen = {
        name: _chosen(label.backend, offers, without_torch=without_torch)
        for name, offers in online.items()
    }
    found = set(chosen.values())
    if len(found) > 1:
        raise FleetError(
            f"the workers differ, and labels of one run are made by one backend: {_told(chosen)}. "
            f"Say which with --backend (all workers must offer it), or stop the others{_GHOSTS}"
        )
    backend = found.pop() if found else choose_backend(label.backend)[0]
    exact = precision_of(backend) if label.precision == "auto" else label.precision
    return label.model_copy(update={"backend": backend, "precision": exact})


def _chosen(asked: str, offers: tuple[str, ...], *, without_torch: bool) -> str:
    """Return what a worker would choose, "" where it has nothing that was asked for."""
    usable = [
        one
        for one in offers
        if fits(one, asked) and not (one == "torch" and asked == "auto" and without_torch)
    ]
    return usable[0] if usable else ""


def _refuse_if_absent(backend: str, online: Offers) -> None:
    lacking = {name: offers for name, offers in online.items() if backend not in offers}
    if lacking and len(lacking) == len(online):
        raise FleetError(
            f"no worker that is online offers {backend}: "
            f"{_told({name: ', '.join(offers) for name, offers in lacking.items()})}. "
            f"Start one that does, or name another --backend{_GHOSTS}"
        )
    if lacking:
        raise FleetError(
            f"not every worker that is online offers {backend}: "
            f"{_told({name: ', '.join(offers) for name, offers in lacking.items()})}. "
            f"Stop those, or name another --backend{_GHOSTS}"
        )


def refuse_unless_offered(backend: str) -> None:
    """Refuse a shard whose labels this worker cannot make.

    Raises:
        FleetError: its backend needs a GPU that is not here, or software that is not.

    """
    if backend in {"onnxruntime-cuda", "tensorrt"} and backend not in offered_backends():
        raise FleetError(
            f"this worker cannot run {backend}, which this shard's labels have to be made with: it "
            f"offers {', '.join(offered_backends())}. `autolabel doctor` there says what is missing"
        )


def _told(found: dict[str, str]) -> str:
    parts = (f"{name.partition(OFFERS)[0]} has {what or 'none'}" for name, what in found.items())
    return "; ".join(sorted(parts))
