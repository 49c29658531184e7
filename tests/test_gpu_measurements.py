"""What is measured on a GPU is what it is said to be."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_commands_that_are_to_draw_outlines_run_the_copy_that_does(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "tools"))
    large = pytest.importorskip("gpu_product_large")
    run = pytest.importorskip("gpu_product_run")
    (tmp_path / "sam2_core").mkdir()
    (tmp_path / "sam2_core" / "__init__.py").write_text("")
    where = "import sam2_core; print(sam2_core.__file__)"
    found = subprocess.run(
        [*run.AUTOLABEL[:-1], where], cwd=ROOT, env=os.environ | large.running(tmp_path),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(found.stdout.strip()).is_relative_to(tmp_path)
