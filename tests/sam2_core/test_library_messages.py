"""What libraries write of their own accord does not reach the terminal of who labels."""

import subprocess
import sys

import onnxruntime
import pytest

from tests.conftest import REPOSITORY

SESSION = """
from pathlib import Path
from sam2_core.backends.onnxruntime_backend import open_session
from sam2_core.backend_choice import _PROBE, cuda_provider_problem
cuda = ("CUDAExecutionProvider", {"device_id": "0"})
open_session(Path("probe"), 1, [cuda, "CPUExecutionProvider"], model=_PROBE)
"""
PROBE = """
from sam2_core import backend_choice
backend_choice._has = lambda name: True
print(backend_choice.cuda_provider_problem())
"""


def written(code):
    """Both streams of a Python process: ONNX Runtime writes to them directly."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="this ONNX Runtime was built without CUDA",
)
def test_onnxruntime_says_nothing_of_plugins_and_of_a_gpu_that_is_tried():
    assert "W:onnxruntime" not in written(SESSION)[1]
    problem, told = written(PROBE)
    assert told == ""
    assert problem.count("\n") == 1  # our own words, and no line of where CUDA was looked for


def test_ffmpeg_does_not_talk_between_our_lines(tmp_path):
    """It would say "moov atom not found", without the file's name."""
    (tmp_path / "clip.mp4").write_bytes(b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + b"\1\0" * 99)
    code = f"""
from tasks.frames.video import expand_videos
from tasks.types import ALL_FRAMES, VideoRef
(one,) = expand_videos([VideoRef("s", "", None, {str(tmp_path / "clip.mp4")!r}, ALL_FRAMES)])
print(one.reason)
"""
    said, errors = written(code)
    assert "no frame could be decoded" in said
    assert errors == ""
