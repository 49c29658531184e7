"""Every TensorRT name that the backend uses exists in the real API, with these arguments.

mypy holds the source against stubs made from the signatures in the real bindings, of TensorRT 11.
This proves that the calls exist, not that engines run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .bindings import describe
from .stubs import StubWriter

pytestmark = pytest.mark.ci
ROOT = Path(__file__).parents[3]
SOURCES = [
    path
    for path in sorted((ROOT / "sam2_core").rglob("*.py"))
    if re.search(r"^\s*(import|from) tensorrt\b", path.read_text(), re.MULTILINE)
]
CONFIG = """[mypy]
strict = True
warn_unused_ignores = False
[mypy-tensorrt]
ignore_errors = True
[mypy-cuda.*,onnxruntime.*,cv2.*]
ignore_missing_imports = True
follow_imports = skip
"""


@dataclass
class Contract:
    """One version of the API, and mypy over it."""

    api: dict[str, Any]
    folder: Path

    def errors(self, files: list[Path]) -> dict[str, list[str]]:
        """mypy's errors by file name."""
        stub = self.folder / "stub" / "tensorrt.pyi"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(StubWriter(self.api).text())
        config = self.folder / "mypy.ini"
        config.write_text(CONFIG)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir",
             self.folder.parent / "mypy-cache", "--no-error-summary", *files],
            check=False, cwd=ROOT, capture_output=True, text=True, timeout=250,
            env={**os.environ, "MYPYPATH": f"{stub.parent}:{ROOT}"},
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stdout + done.stderr
        found: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            path, number, rest = line.split(":", 2)
            found.setdefault(Path(path).name, []).append(f"{number}:{rest}")
        return found


def test_the_backend_uses_only_what_the_real_api_has(tmp_path: Path) -> None:
    assert Contract(describe(tmp_path), tmp_path).errors(SOURCES) == {}
