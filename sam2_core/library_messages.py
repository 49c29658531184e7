"""What libraries write to the terminal on their own account: kept away from people who label.

Sessions are asked for errors only, but ONNX Runtime says much through a logger that belongs to
no session, and prints where it looked for CUDA. What of it matters is in our own messages.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings

_ERRORS, _FATAL = 3, 4


def quiet_onnxruntime(*, trying: bool = False) -> None:
    """Let ONNX Runtime's default logger tell errors only; call before a session is made.

    Args:
        trying: not even errors: what is tried may fail, and who tries says so.

    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(_FATAL if trying else _ERRORS)


def preload_cuda() -> None:
    """Load CUDA's and cuDNN's libraries from their Python packages, where these are installed."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        # It prints what it does not find, to the stream that `--json` is written to.
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()


def quiet_ffmpeg() -> None:
    """Keep the FFmpeg in OpenCV from telling what is wrong with a file, without its name.

    Call before the first `cv2.VideoCapture`: it is read once.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")


def quiet_torch_compiler() -> None:
    """Keep PyTorch's compiler from recommending TF32, which changes masks; it is off on purpose.

    And from telling about its own use of what it calls deprecated.
    """
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
    warnings.filterwarnings("ignore", "`isinstance.treespec", FutureWarning)
