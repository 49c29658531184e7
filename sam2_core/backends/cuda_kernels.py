"""Kernels of our own, compiled for the device when a process starts: NVRTC, 0.3 s, no compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from sam2_core.types import AutolabelError, MachineError


def compiled(source: str, names: Sequence[str], architecture: str) -> dict[str, Any]:
    """Compile CUDA C++ and load it into the current context.

    Args:
        source: one file; its kernels are `extern "C"`.
        names: of the kernels.
        architecture: such as sm_90.

    Raises:
        AutolabelError: NVRTC is not installed, or refuses the source.

    """
    try:
        from cuda.bindings import driver, nvrtc
    except ImportError as error:
        raise AutolabelError(f"NVRTC cannot be used: {error}") from error
    try:
        image = _image(nvrtc, source, architecture)
    except RuntimeError as error:  # cuda-bindings did not find the library
        raise AutolabelError(f"NVRTC cannot be used: {error}") from error
    module = _checked(driver.cuModuleLoadData(image), "cuModuleLoadData")
    return {
        name: _checked(driver.cuModuleGetFunction(module, name.encode()), name) for name in names
    }


def _image(nvrtc: Any, source: str, architecture: str) -> bytes:
    program = _checked(
        nvrtc.nvrtcCreateProgram(source.encode(), b"pixels.cu", 0, [], []), "nvrtcCreateProgram"
    )
    options = [f"--gpu-architecture={architecture}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        size = _checked(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AutolabelError(f"NVRTC refuses the kernels for {architecture}: {log.decode()}")
    image: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    _checked(nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    return image


def _checked(answer: tuple[Any, ...], name: str) -> Any:
    status, *values = answer
    if int(status) != 0:
        raise MachineError(f"CUDA: {name} failed with {status.name}")
    return values[0] if values else None


def launch(
    kernel: Any,
    blocks: tuple[int, int, int],
    threads: tuple[int, int, int],
    arguments: Sequence[tuple[Any, Any]],
    stream: int,
) -> None:
    """Queue a kernel on a stream; arguments are pairs of a value and its ctypes type."""
    from cuda.bindings import driver

    values = tuple(value for value, _ in arguments)
    kinds = tuple(kind for _, kind in arguments)
    answer = driver.cuLaunchKernel(kernel, *blocks, *threads, 0, stream, (values, kinds), 0)
    _checked(answer, "cuLaunchKernel")


POINTER, INT, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
