"""Detectors, loaded: each once for a run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tasks.boxes.detector_files import (
    CPU,
    CUDA,
    TENSORRT,
    DetectorFile,
    ReplacedError,
    replaced,
    resolve_detector,
)

if TYPE_CHECKING:
    from sam2_core.backends.gpu import Gpu
    from tasks.boxes.yolox import AnyDetector


class Detectors:
    """The detectors that a command or a flow run has loaded: each once, for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[DetectorFile, str], AnyDetector] = {}

    def load(self, name_or_path: str, stamp: str = "", backend: str = CPU[0]) -> AnyDetector:
        """Return the one detector of this file and backend; as `load_detector` the first time."""
        file, kind = _file_of(name_or_path, stamp), backend
        with self._lock:
            if backend not in {CUDA, TENSORRT}:
                kind = "cpu" if _gpu_beside(backend) is None else "beside"
            if (file, kind) not in self._loaded:
                self._loaded[file, kind] = load_detector(name_or_path, stamp, backend)
            return self._loaded[file, kind]


def load_detector(name_or_path: str, stamp: str = "", backend: str = CPU[0]) -> AnyDetector:
    """Load a detector.

    Args:
        name_or_path: as `resolve_detector` takes it.
        stamp: the stamp that its boxes will be stored under, where that was decided before.
        backend: of the mask model beside it, resolved: it runs where that runs.

    Raises:
        AutolabelError: it cannot be had or read, or is not that of the stamp.

    """
    from tasks.boxes.prompted import PromptedDetector
    from tasks.boxes.yolox import Detector

    file = _file_of(name_or_path, stamp)
    if file.prompts:
        return PromptedDetector(file)
    if backend == TENSORRT:
        from sam2_core.backend_choice import require_tensorrt
        from sam2_core.backends.gpu import process_gpu

        require_tensorrt()
        from sam2_core.backends.tensorrt_backend import engines_folder

        return Detector(file, process_gpu(), engines=engines_folder())
    # Beside PyTorch, whose threads ask the device while this one would capture.
    return Detector(file, _gpu_beside(backend), captured=backend == CUDA)


def _file_of(name_or_path: str, stamp: str) -> DetectorFile:
    file = resolve_detector(name_or_path)
    if stamp and file.stamp != stamp:
        raise ReplacedError(replaced(file.path, f" (now {file.stamp}, {stamp} then)"))
    return file


def _gpu_beside(backend: str) -> Gpu | None:
    """Return the device that a mask model's backend uses; None: it, or ONNX Runtime, uses none."""
    from sam2_core.backend_choice import choose_backend, preload_cuda
    from sam2_core.backends.gpu import process_gpu

    if backend in {CPU[0], "onnxruntime-cpu"} or choose_backend("onnxruntime")[0] != CUDA:
        return None
    preload_cuda()
    return process_gpu()
