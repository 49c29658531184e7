"""Every TensorRT name that the backend uses exists in the real API, with these arguments.

`tensorrt-cu13-bindings` is the compiled Python API. It needs three libraries of several gigabytes,
but of them only nine names when it is imported: three empty libraries with those names do. mypy's
stubgen writes stubs from its docstrings, and mypy holds the source against them. This proves that
the calls exist, not that engines run.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci
ROOT = Path(__file__).parents[2]
ENTRY_POINTS = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL", "getNvOnnxParserVersion",
    "initLibNvInferPlugins", "getBuilderPluginRegistry", "getPluginRegistry",
)  # fmt: skip
CONFIG = """[mypy]
strict = True
warn_unused_ignores = False
[mypy-tensorrt]
ignore_errors = True
[mypy-cuda.*,onnxruntime.*,onnx.*,cv2.*]
ignore_missing_imports = True
follow_imports = skip
"""
# What docstrings do not say: any sequence of ints is taken for Dims, plain functions, the buffer
# protocol, and where a null pointer becomes None.
MORE = """
__version__: str
def nptype(trt_type: DataType) -> type: ...
"""
METHODS = {
    "Dims": "__iter__(self) -> typing.Iterator[int]",
    "IHostMemory": "__buffer__(self, flags: int) -> memoryview",
}
NULLABLE = "build_serialized_network|deserialize_cuda_engine|create_execution_context"


@pytest.fixture
def stubs(tmp_path):
    """Folder with `tensorrt.pyi`."""
    found = importlib.util.find_spec("tensorrt_bindings")
    gcc = shutil.which("gcc") or shutil.which("cc")
    if found is None or gcc is None:
        pytest.skip("needs TensorRT's bindings (Linux on x86-64) and a C compiler")
    source = tmp_path / "entry_points.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in ENTRY_POINTS))
    for library in ("nvinfer", "nvinfer_plugin", "nvonnxparser"):
        target = tmp_path / f"lib{library}.so.11"
        subprocess.run([gcc, "-shared", "-fPIC", "-o", target, source], check=True)
    subprocess.run(
        [Path(sys.executable).with_name("stubgen"), "--inspect-mode", "-o", tmp_path,
         "-m", "tensorrt_bindings.tensorrt"],
        check=True, env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
    )  # fmt: skip
    text = (tmp_path / "tensorrt_bindings" / "tensorrt.pyi").read_text()
    # C++ allows what Python does not: a required argument behind an optional one.
    text = re.sub(r"= \.\.\.(?=[^()\n]*, \w+: [^=,()\n]+[,)])", "", text)
    text = re.sub(r": Dims\b", ": Dims | collections.abc.Sequence[int]", text)
    text = re.sub(rf"(def (?:{NULLABLE})\(.*\) -> \w+):", r"\1 | None:", text)
    for name, method in METHODS.items():
        text = text.replace(f"class {name}:\n", f"class {name}:\n    def {method}: ...\n")
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "tensorrt.pyi").write_text(text + MORE)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    return tmp_path


def told(stubs, *files):
    """What mypy says of files."""
    command = [sys.executable, "-m", "mypy", "--config-file", stubs / "mypy.ini", "--cache-dir",
               stubs / "cache", "--no-error-summary", *files]  # fmt: skip
    path = f"{stubs / 'stub'}:{ROOT}"
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"MYPYPATH": path},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_backend_uses_only_what_the_real_api_has(stubs):
    sources = sorted((ROOT / "sam2_core" / "backends").glob("tensorrt_*.py"))
    assert told(stubs, *sources) == ""
    wrong = stubs / "wrong.py"  # and what it has not is noticed
    wrong.write_text(sources[0].read_text() + "\nimport tensorrt\ntensorrt.misspelled()\n")
    assert "misspelled" in told(stubs, wrong)
