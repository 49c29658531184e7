"""A model on this machine, loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.backend_choice import ON_GPU, choose_backend, precision_for, refuse_if_gone
from sam2_core.cache import cache_folder
from sam2_core.resolve import Wanted, need_torch, resolve_model, resolve_weights

if TYPE_CHECKING:
    from sam2_core.backends.protocol import Backend

logger = logging.getLogger(__name__)


def load_backend(
    model: str | Path,
    backend: str = "auto",
    precision: str = "auto",
    graph: str = "restructured",
    *,
    threads: int | None = None,
    close_ups: bool | None = None,
    cache: str | Path | None = None,
    progress: Callable[[str], object] = lambda _: None,
    triton_urls: Sequence[str] = (),
) -> Backend:
    """Load a model on this machine.

    Args:
        model: a preset's name, a model folder, a checkpoint file, or `random:PRESET`; see
            `sam2_core.resolve.resolve_model`.
        backend: one of `BACKENDS`.
        precision: one of `PRECISIONS`; what "auto" is, `precision_for` says.
        graph: "restructured", or "published" for comparison.
        threads: CPU threads of one operator; every core when None.
        close_ups: take each box in a crop of its own, not whole frames; None: where the model can.
        cache: cache folder; the default one when None.
        progress: called with what is being done, when it takes long.
        triton_urls: servers of the backend "triton", see `sam2_core.backends.triton_backend`.

    Raises:
        AutolabelError: the model or the backend is not there, or cannot be used.
        DeviceLostError: the GPU worked before and is gone.

    """
    chosen, reason = choose_backend(backend)
    if chosen == "triton":
        from sam2_core.backends.triton_backend import load_triton

        return load_triton(model, precision, triton_urls)
    if chosen in ON_GPU:
        refuse_if_gone()  # PyTorch would go on on the CPU
    exact = precision_for(chosen, precision, model, close_ups)
    logger.info("backend %s (%s), precision %s", chosen, reason, exact)
    wanted = Wanted(exact, graph, cache_folder(cache), progress)
    if chosen == "torch":
        need_torch("the torch backend")
        from sam2_core.backends.torch_backend import load_torch

        return load_torch(resolve_weights(model, wanted), wanted, close_ups)
    folder = resolve_model(model, wanted).for_close_ups(close_ups)
    if chosen == "onnxruntime-cpu":
        from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend

        return OnnxRuntimeBackend(folder, threads)
    if chosen == "tensorrt":
        from sam2_core.backends.tensorrt_backend import load_tensorrt

        return load_tensorrt(folder)
    from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend

    return OnnxRuntimeCudaBackend(folder)
