"""Which backends this machine can run, which of them is taken, and in which precision."""

import base64
import contextlib
import functools
import importlib
import importlib.util
import io
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sam2_core import devices
from sam2_core.checkpoints import need_torch
from sam2_core.machine import how_to_install
from sam2_core.machine_errors import first_line
from sam2_core.presets import PRESETS
from sam2_core.types import AutolabelError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackendKind:
    """What there is to know of a backend before anything of it is imported.

    Attributes:
        loader: what loads a model, as MODULE:NAME in `sam2_core.backends`.
        follower: what runs a model's memory of video; "" where nothing does.
        extra: of this package, that brings what it needs.
        on_gpu: what it needs beside a GPU, in words; "" where it needs no GPU.

    """

    loader: str
    follower: str = ""
    extra: str = ""
    on_gpu: str = ""


# What "auto" takes first comes first: PyTorch was measured to be fastest, TensorRT has not run on a
# GPU yet; see docs/BENCHMARKS.md.
KINDS = {
    "torch": BackendKind(
        "torch_backend:load_torch", "torch_follow:TorchFollowBackend", "torch", "PyTorch with CUDA"
    ),
    "onnxruntime-cuda": BackendKind(
        "onnxruntime_cuda:OnnxRuntimeCudaBackend", extra="gpu", on_gpu="the CUDA provider"
    ),
    "tensorrt": BackendKind("tensorrt_backend:load_tensorrt", extra="tensorrt", on_gpu="TensorRT"),
    "onnxruntime-cpu": BackendKind(
        "onnxruntime_backend:OnnxRuntimeBackend", "follow_backends:OnnxFollowBackend"
    ),
    "triton": BackendKind("triton_backend:load_triton"),
}
BACKENDS = ("auto", "onnxruntime", *sorted(KINDS))
BEST_FIRST = tuple(name for name in KINDS if name != "triton")  # that run on this machine
EXTRAS = {name: kind.extra for name, kind in KINDS.items() if kind.extra}
ON_GPU = {name: kind.on_gpu for name, kind in KINDS.items() if kind.on_gpu}
FOLLOWING = tuple(name for name, kind in KINDS.items() if kind.follower)
PRECISIONS = ("auto", "fp32", "fp16")
# An ONNX graph of one Relu, to see whether a provider works.
_PROBE = base64.b64decode(
    "CAgSADo3CgwKAXgSAXkiBFJlbHUSBXByb2JlWg8KAXgSCgoICAESBAoCCAFiDwoBeRIKCggIARIECgIIAUIECgAQEQ=="
)


def quiet_onnxruntime(*, trying: bool = False) -> None:
    """Let ONNX Runtime's default logger tell errors only; call before a session is made.

    Args:
        trying: not even errors: what is tried may fail, and who tries says so.

    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4 if trying else 3)


def preload_cuda() -> None:
    """Load CUDA's and cuDNN's libraries from their Python packages, where these are installed."""
    import onnxruntime

    # It prints what it does not find, to the stream that `--json` is written to.
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()


def imported(reference: str) -> Any:
    """Return what a `BackendKind` names; this alone imports a backend."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(f"sam2_core.backends.{module}"), name)


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
        wrong = devices.no_gpu() if backend == "torch" else ""
        return backend, wrong or "as asked"
    gpus = devices.cuda_devices()
    if not gpus:
        return "onnxruntime-cpu", devices.no_gpu() or "no NVIDIA GPU here"
    for name, what in ON_GPU.items():
        if fits(name, backend) and _usable(name):
            return name, f"{gpus} NVIDIA GPU(s) and {what} are here{_passed_over(name, backend)}"
    problem = cuda_provider_problem()
    reason = f"a GPU is here, but {problem}. To use it: {how_to_install('gpu')}"
    logger.warning("%s", reason)
    return "onnxruntime-cpu", reason


def _passed_over(taken: str, asked: str) -> str:
    """Say why TensorRT is installed and not taken."""
    if (taken, asked) != ("onnxruntime-cuda", "auto") or not has_tensorrt():
        return ""
    return f"; not tensorrt: {tensorrt_problem() or 'it is taken where --backend names it'}"


def fits(name: str, asked: str) -> bool:
    """Whether a backend is one of those that `auto`, a family or an exact name asks for."""
    return asked in {"auto", name} or (asked == "onnxruntime" and name.startswith(asked))


def needs_gpu(backend: str, precision: str) -> bool:
    """Whether masks of a backend in a precision are made on a GPU, and nowhere else.

    PyTorch computes fp32 on a processor, too; of halves it makes something else there. Who asks a
    server of `triton` needs no GPU; what runs on that server may.

    Args:
        backend: a backend, not a family of them.
        precision: fp32 or fp16.

    """
    return backend in ON_GPU and (backend != "torch" or precision == "fp16")


def offered_backends() -> tuple[str, ...]:
    """Return the backends that can run on this machine, best first."""
    on_gpu = [name for name in ON_GPU if devices.cuda_devices() and _usable(name)]
    return (*on_gpu, "onnxruntime-cpu")


def refuse_unless_usable(name: str) -> None:
    """Refuse a backend that cannot run on this machine; trying a provider takes seconds.

    Args:
        name: a backend, not a family of them. Servers of `triton` are asked elsewhere.

    Raises:
        AutolabelError: what is missing, a GPU first of all.

    """
    if name == "torch":  # without a GPU it runs on the processor
        need_torch("the torch backend")
    if name not in ON_GPU or name == "torch":
        return
    if not devices.cuda_devices():
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = "" if named is None else f" (CUDA_VISIBLE_DEVICES={named})"
        raise AutolabelError(
            f"{name} needs an NVIDIA GPU, and the driver shows none to this process{seen}: choose "
            "--backend onnxruntime-cpu, or `auto`, which takes what is here"
        )
    if _usable(name):
        return
    problem = cuda_provider_problem() if name == "onnxruntime-cuda" else tensorrt_problem()
    remedy = f"To use it: {how_to_install(EXTRAS[name])}"
    if name == "tensorrt" and _has("cuda") and has_tensorrt() and not runtime_problem(""):
        remedy = "Choose --backend torch or onnxruntime-cuda"  # this GPU is none of its own
    raise AutolabelError(f"{name} cannot run here: {problem}. {remedy}")


def _tested(name: str) -> bool:
    return name in os.environ.get(devices.TESTED_VARIABLE, "").split(",")


def tested_backends() -> tuple[str, ...]:
    """Return the backends of GPUs that processes started by this one need not test again."""
    known = tuple(name for name in ON_GPU if _tested(name))
    if cuda_provider_problem.cache_info().currsize and not cuda_provider_problem():
        return tuple(dict.fromkeys((*known, "onnxruntime-cuda")))
    return known


def _usable(name: str) -> bool:
    """Whether a backend of GPUs can run on one that is here."""
    if _tested(name):
        return True
    if name == "torch":
        if not _has("torch"):
            return False
        try:
            import torch
        except ImportError:  # there, and broken
            return False
        return bool(torch.cuda.is_available())
    return not (tensorrt_problem() if name == "tensorrt" else cuda_provider_problem())


def has_tensorrt() -> bool:
    """Whether one of the two libraries is installed."""
    return any(
        importlib.util.find_spec(package) for package in ("tensorrt", "tensorrt_rtx_bindings")
    )


def require_tensorrt() -> None:
    """Raise `AutolabelError` where TensorRT is not installed, or cannot be loaded."""
    problem = runtime_problem("") if has_tensorrt() else "TensorRT is not installed"
    if problem:
        raise AutolabelError(
            f"{problem}: {how_to_install('tensorrt')} (Linux x86_64, NVIDIA GPU), "
            "or use another backend, which needs no engines"
        )


@functools.cache
def runtime_problem(capability: str) -> str:
    """Say why TensorRT, which is installed, runs nothing on a GPU here; "" where it can.

    Args:
        capability: the GPU's, such as sm89; "": whether the library loads at all.

    """
    try:
        from sam2_core.backends.tensorrt_engines import opens_on

        return opens_on(capability)
    except Exception as error:  # noqa: BLE001 - whatever it is, another backend serves
        return f"TensorRT opens no runtime ({first_line(error)})"


def tensorrt_problem() -> str:
    """Say why TensorRT cannot run on the GPU; "" when it can."""
    if not (has_tensorrt() and _has("cuda")):
        return "TensorRT or cuda-bindings are not installed"
    return runtime_problem(devices.compute_capability())


def precision_of(backend: str) -> str:
    """Return the precision that a backend computes in where nothing else is asked for."""
    return "fp32" if backend == "onnxruntime-cpu" else "fp16"


@functools.cache
def cuda_provider_problem() -> str:
    """Say why ONNX Runtime cannot run on the GPU; "" when it can: a tiny graph is run there.

    That takes seconds, so what a worker or a run has found out holds for the processes it starts.
    """
    if _tested("onnxruntime-cuda"):
        return ""
    import numpy as np
    import onnxruntime as ort

    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return "this ONNX Runtime has no CUDA provider"
    if not _has("cuda"):
        return "cuda-bindings are not installed"
    try:
        preload_cuda()
        quiet_onnxruntime(trying=True)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(_PROBE, options, providers=["CUDAExecutionProvider"])
        session.run(None, {"x": np.zeros(1, np.float32)})
    except Exception as error:  # noqa: BLE001 - whatever it is, the CPU serves
        return f"ONNX Runtime's CUDA provider failed ({first_line(error)})"
    finally:
        quiet_onnxruntime()
    if session.get_providers()[0] != "CUDAExecutionProvider":
        return "ONNX Runtime could not load its CUDA provider (CUDA or cuDNN is missing)"
    return ""


def precision_for(
    backend: str, precision: str, model: str | Path = "", close_ups: bool | None = None
) -> str:
    """Return fp32 or fp16; "auto" is fp16 on a GPU and fp32 on a CPU.

    Of whole frames, a model for close-ups draws several masks that are about as good. Half
    precision chooses others among them, so "auto" is fp32 there, too.

    Args:
        backend: one of `BACKENDS`.
        precision: one of `PRECISIONS`.
        model: what is to be loaded; it counts where it is a preset's name.
        close_ups: as for `load_backend`.

    """
    if precision not in PRECISIONS:
        raise AutolabelError(f"unknown precision {precision!r}: one of {', '.join(PRECISIONS)}")
    if precision != "auto":
        return precision
    on_cpu = backend == "onnxruntime-cpu" or (backend == "torch" and not devices.cuda_devices())
    preset = PRESETS.get(str(model))
    undecided = close_ups is False and preset is not None and preset.close_up_size > 0
    return "fp32" if on_cpu or undecided else "fp16"
