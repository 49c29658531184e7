"""The command line as a user meets it."""

import subprocess
import sys
import time


def test_help_answers_quickly_and_without_heavy_imports():
    code = "import sys, flows.cli.main as m; print(sorted({n.split('.')[0] for n in sys.modules} & "
    code += "{'prefect', 'fiftyone', 'torch', 'onnxruntime', 'cv2', 's3fs'}))"
    started = time.perf_counter()
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    assert time.perf_counter() - started < 5
