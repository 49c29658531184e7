"""The command line as a user meets it."""

import subprocess
import sys


def test_help_imports_nothing_heavy():
    code = "import sys, flows.cli.main as m; print(sorted({n.split('.')[0] for n in sys.modules} & "
    code += "{'prefect', 'fiftyone', 'torch', 'onnxruntime', 'cv2', 's3fs'}))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
