"""A model on this machine: chooses the backend and the precision, and loads it."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.cache import cache_folder
from sam2_core.resolve import Wanted, need_torch, resolve_model, resolve_weights
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.types import Backend

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "onnxruntime", "onnxruntime-cpu", "onnxruntime-cuda", "tensorrt", "torch")
PRECISIONS = ("auto", "fp32", "fp16")


def cuda_devices() -> int:
    """Return the number of NVIDIA GPUs that the driver shows to this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def choose_backend(backend: str) -> tuple[str, str]:
    """Return the backend to use and why.

    Args:
        backend: one of `BACKENDS`; "auto" takes the fastest that this machine can run, and
            "onnxruntime" the provider that this machine has.

    """
    if backend not in BACKENDS:
        raise AutolabelError(f"unknown backend {backend!r}: one of {', '.join(BACKENDS)}")
    if backend not in ("auto", "onnxruntime"):
        return backend, "as asked"
    devices = cuda_devices()
    if not devices:
        return "onnxruntime-cpu", "no NVIDIA GPU here"
    if backend == "auto" and _has("tensorrt"):
        return "tensorrt", f"{devices} NVIDIA GPU(s) and TensorRT are here"
    if backend == "auto" and _has("torch"):
        import torch

        if torch.cuda.is_available():
            return "torch", f"{devices} NVIDIA GPU(s) and PyTorch with CUDA are here"
    if _cuda_provider_is_built_in():
        return "onnxruntime-cuda", f"{devices} NVIDIA GPU(s) and the CUDA provider are here"
    reason = "a GPU is here, but ONNX Runtime has no CUDA provider: install the extra gpu"
    logger.warning(reason)
    return "onnxruntime-cpu", reason


def _cuda_provider_is_built_in() -> bool:
    import onnxruntime as ort

    return "CUDAExecutionProvider" in ort.get_available_providers()


def precision_for(backend: str, precision: str) -> str:
    """Return fp32 or fp16; "auto" is fp16 on a GPU and fp32 on a CPU."""
    if precision not in PRECISIONS:
        raise AutolabelError(f"unknown precision {precision!r}: one of {', '.join(PRECISIONS)}")
    if precision != "auto":
        return precision
    on_cpu = backend == "onnxruntime-cpu" or (backend == "torch" and not cuda_devices())
    return "fp32" if on_cpu else "fp16"


def load_backend(
    model: str | Path,
    backend: str = "auto",
    precision: str = "auto",
    graph: str = "restructured",
    *,
    threads: int | None = None,
    windows: bool = True,
    cache: str | Path | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> Backend:
    """Load a model on this machine.

    Args:
        model: a preset's name, a model folder, a checkpoint file, or `random:PRESET`; see
            `sam2_core.resolve.resolve_model`.
        backend: one of `BACKENDS`.
        precision: one of `PRECISIONS`; "auto" is fp16 on a GPU and fp32 on a CPU.
        graph: "restructured", or "published" for comparison.
        threads: CPU threads of one operator; every core when None.
        windows: on the CPU, decode boxes only in windows around them: 1.6 times faster, and what
            a mask has far outside its box is lost.
        cache: cache folder; the default one when None.
        progress: called with what is being done, when it takes long.

    Raises:
        AutolabelError: the model or the backend is not there, or cannot be used.

    """
    chosen, reason = choose_backend(backend)
    exact = precision_for(chosen, precision)
    logger.info("backend %s (%s), precision %s", chosen, reason, exact)
    wanted = Wanted(exact, graph, cache_folder(cache), progress)
    if chosen == "torch":
        need_torch("the torch backend")
        from sam2_core.backends.torch_backend import load_torch

        return load_torch(resolve_weights(model, wanted), wanted)
    folder = resolve_model(model, wanted)
    if chosen == "onnxruntime-cpu":
        from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend

        return OnnxRuntimeBackend(folder, threads, windows=windows)
    if chosen == "tensorrt":
        from sam2_core.backends.tensorrt_backend import load_tensorrt

        return load_tensorrt(folder)
    from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend

    return OnnxRuntimeCudaBackend(folder)
