"""What is measured on a GPU is what it is said to be."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]


def test_commands_run_the_copy_of_the_product_that_they_are_given(tmp_path, monkeypatch):
    """A copy that draws outlines was never run: Python looks in the folder it starts in first."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "tools"))
    monkeypatch.chdir(ROOT)
    import gpu_product_run as measuring

    no_device = SimpleNamespace(summary=dict)
    monkeypatch.setattr(measuring, "Busy", lambda: nullcontext(no_device))
    (tmp_path / f"frames-{measuring.SEQUENCES}").mkdir()
    copy = tmp_path / "copy" / "sam2_core"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("")
    code = "import json, sam2_core; print(json.dumps({'file': sam2_core.__file__}))"
    found = measuring.Run(tmp_path / "clip.mp4", tmp_path).command(
        "which", env={"PYTHONPATH": str(copy.parent)}, command=(sys.executable, "-c", code)
    )
    assert Path(found["file"]).parent == copy, json.dumps(found)
