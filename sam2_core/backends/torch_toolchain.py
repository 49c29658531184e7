"""What compiling ahead of time needs on a machine: a C++ compiler, CUDA's headers, its driver."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from sam2_core.backends.torch_artifact import mapped_files
from sam2_core.types import AutolabelError


def need_compilers(device: torch.device) -> None:
    """Ask for what the artifact is built with before the module is traced.

    Raises:
        AutolabelError: there is no C++ compiler, or no CUDA toolkit.

    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch.utils import cpp_extension

    try:
        get_cpp_compiler()
    except RuntimeError as error:
        raise AutolabelError("there is no C++ compiler (install g++, or set CXX)") from error
    if device.type == "cuda" and cpp_extension.CUDA_HOME is None:
        cpp_extension.CUDA_HOME = _cuda_headers()


def _cuda_headers() -> str:
    """Return the folder of NVIDIA's Python packages, where they have all of CUDA's headers."""
    found = find_spec("nvidia")
    major = str(torch.version.cuda).partition(".")[0]
    for root in (found and found.submodule_search_locations) or ():
        folder = Path(root) / f"cu{major}"
        if all((folder / "include" / name).exists() for name in ("cuda.h", "crt", "nv/target")):
            return str(folder)
    raise AutolabelError(
        "there is no CUDA toolkit (install it, or `pip install nvidia-cuda-crt nvidia-cuda-cccl`, "
        "which is enough beside PyTorch for CUDA 13)"
    )


@contextlib.contextmanager
def driver_to_link(folder: Path) -> Iterator[None]:
    """Let the linker find the CUDA driver that is loaded, by a link in an empty folder.

    Many machines have `libcuda.so.1` only, which programs load, not `libcuda.so`, as linkers want.
    """
    loaded = [path for path in mapped_files() if Path(path).name.startswith("libcuda.so")]
    if not loaded:
        yield
        return
    (folder / "libcuda.so").symlink_to(loaded[0])
    before = os.environ.get("LIBRARY_PATH")
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, (before, str(folder))))
    try:
        yield
    finally:
        del os.environ["LIBRARY_PATH"]
        if before is not None:
            os.environ["LIBRARY_PATH"] = before
