"""The real TensorRT Python bindings, loaded without TensorRT.

`tensorrt-cu13-bindings` (PyPI) is the compiled Python API. It needs three libraries of several
gigabytes, but of them only nine names when it is imported. Three empty libraries with those names
make the import work, and every docstring of the bindings carries its real signature.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ENTRY_POINTS = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL", "getNvOnnxParserVersion",
    "initLibNvInferPlugins", "getBuilderPluginRegistry", "getPluginRegistry",
)  # fmt: skip
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
# Not in the lock, which holds one version of a package: fetched when the package index is there.
TENSORRT_10 = "tensorrt-cu13-bindings==10.16.1.11"


def build_libraries(folder: Path, major: int) -> None:
    """Three shared objects that export the entry points and nothing else."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("no C compiler: the placeholder libraries cannot be built")
    source = folder / "entry_points.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in ENTRY_POINTS))
    for library in LIBRARIES:
        name = f"lib{library}.so.{major}"
        command = [gcc, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([*command, str(source)], check=True)


def bindings_folder(major: int, folder: Path) -> str | None:
    """Where `tensorrt_bindings` of this version lies; None where it cannot be had."""
    if major == 11:
        import importlib.util

        found = importlib.util.find_spec("tensorrt_bindings")
        return str(Path(found.origin).parent.parent) if found and found.origin else None
    target = folder / "site"
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--target", str(target), TENSORRT_10,
    ]  # fmt: skip
    uv = shutil.which("uv") or str(HERE.parents[2] / ".uv" / "bin" / "uv")
    if Path(uv).exists():
        command = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(target),
            TENSORRT_10,
        ]
    done = subprocess.run(command, check=False, capture_output=True, timeout=120)
    return str(target) if done.returncode == 0 else None


def describe(major: int, folder: Path) -> dict[str, Any]:
    """The API of TensorRT 10 or 11, as its own bindings state it."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("the TensorRT bindings that are checked here exist for Linux on x86-64")
    build_libraries(folder, major)
    site = bindings_folder(major, folder)
    if site is None:
        pytest.skip(f"the TensorRT {major} bindings are not installed and cannot be fetched")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": site}
    done = subprocess.run(
        [sys.executable, str(HERE / "describe_bindings.py")],
        check=False, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    api: dict[str, Any] = json.loads(done.stdout)
    assert api["version"].startswith(f"{major}.")
    return api
