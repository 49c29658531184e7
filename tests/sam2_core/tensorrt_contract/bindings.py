"""The real TensorRT Python bindings, loaded without TensorRT.

`tensorrt-cu13-bindings` (PyPI) is the compiled Python API. It needs three libraries of several
gigabytes, but of them only nine names when it is imported. Three empty libraries with those names
make the import work, and every docstring of the bindings carries its real signature.
"""

from __future__ import annotations

import importlib.util
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
# Of the bindings in the lock.
MAJOR = 11


def build_libraries(folder: Path) -> None:
    """Three shared objects that export the entry points and nothing else."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("no C compiler: the placeholder libraries cannot be built")
    source = folder / "entry_points.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in ENTRY_POINTS))
    for library in LIBRARIES:
        name = f"lib{library}.so.{MAJOR}"
        command = [gcc, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([*command, str(source)], check=True)


def describe(folder: Path) -> dict[str, Any]:
    """The API of the TensorRT that is installed, as its own bindings state it."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("the TensorRT bindings that are checked here exist for Linux on x86-64")
    found = importlib.util.find_spec("tensorrt_bindings")
    if found is None or found.origin is None:
        pytest.skip("the TensorRT bindings are not installed")
    build_libraries(folder)
    site = str(Path(found.origin).parent.parent)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": site}
    done = subprocess.run(
        [sys.executable, str(HERE / "describe_bindings.py")],
        check=False, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    api: dict[str, Any] = json.loads(done.stdout)
    assert api["version"].startswith(f"{MAJOR}.")
    return api
