"""What compiling ahead of time needs on a machine: compiler, headers, libraries that are loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from sam2_core.backends.torch_artifact import mapped_files
from sam2_core.types import AutolabelError

_LOADED_STDCXX = "loaded_stdcxx"


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
def libraries_to_link(folder: Path) -> Iterator[list[str]]:
    """Let the linker find libraries that this process has loaded, by links in an empty folder.

    The CUDA driver: many machines have `libcuda.so.1` only, which programs load, not `libcuda.so`,
    as linkers want.

    The C++ library, under a name of its own: where `libstdc++.so` is not found, compilers link the
    static `libstdc++.a`, and a second one in a process crashes. Some of its symbols are one for the
    process (STB_GNU_UNIQUE, such as `collate<char>::id`), others are its own (`ctype<char>::id`),
    so facets of a locale are mistaken for each other in the first regular expression.

    Yields:
        names of libraries to link, beside those that a compiler links by itself.

    """
    mapped = mapped_files()
    links = {"libcuda.so": "libcuda.so", f"lib{_LOADED_STDCXX}.so": "libstdc++.so"}
    for link, prefix in links.items():
        loaded = [path for path in mapped if Path(path).name.startswith(prefix)]
        if loaded:
            (folder / link).symlink_to(loaded[0])
    before = os.environ.get("LIBRARY_PATH")
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, (before, str(folder))))
    try:
        yield [name for name in (_LOADED_STDCXX,) if (folder / f"lib{name}.so").exists()]
    finally:
        del os.environ["LIBRARY_PATH"]
        if before is not None:
            os.environ["LIBRARY_PATH"] = before
