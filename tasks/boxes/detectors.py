"""Detectors by name: loaded where the mask model runs, each once for a run."""

from __future__ import annotations

import threading

from sam2_core.backend_choice import choose_backend
from sam2_core.backends.gpu import Gpu, process_gpu
from sam2_core.library_messages import preload_cuda
from tasks.boxes.detector_files import (
    DetectorFile,
    ReplacedError,
    replaced,
    resolve_detector,
)
from tasks.boxes.prompted import PromptedDetector
from tasks.boxes.yolox import CPU, CUDA, Detector

TENSORRT = "tensorrt"
AnyDetector = Detector | PromptedDetector


class Detectors:
    """The detectors that a command or a flow run has loaded: each once, for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[DetectorFile, str], AnyDetector] = {}

    def load(self, name_or_path: str, stamp: str = "", backend: str = CPU[0]) -> AnyDetector:
        """Return the one detector of this file and backend; as `load_detector` the first time."""
        file = _file_of(name_or_path, stamp)
        with self._lock:
            key = (file, _kind(backend))
            if key not in self._loaded:
                self._loaded[key] = load_detector(name_or_path, stamp, backend)
            return self._loaded[key]


def load_detector(name_or_path: str, stamp: str = "", backend: str = CPU[0]) -> AnyDetector:
    """Load a detector.

    Args:
        name_or_path: as `resolve_detector` takes it.
        stamp: the stamp that its boxes will be stored under, where that was decided before.
        backend: of the mask model beside it, resolved: it runs where that runs.

    Raises:
        AutolabelError: it cannot be had or read, or is not that of the stamp.

    """
    file = _file_of(name_or_path, stamp)
    if file.prompts:
        return PromptedDetector(file)
    if backend == TENSORRT:
        from sam2_core.backends.tensorrt_loading import engines_folder, require_tensorrt

        require_tensorrt()
        return Detector(file, process_gpu(), engines=engines_folder())
    # Beside PyTorch, whose threads ask the device while this one would capture.
    return Detector(file, _gpu_beside(backend), captured=backend == CUDA)


def _file_of(name_or_path: str, stamp: str) -> DetectorFile:
    file = resolve_detector(name_or_path)
    if stamp and file.stamp != stamp:
        raise ReplacedError(replaced(file.path, f" (now {file.stamp}, {stamp} then)"))
    return file


def _kind(backend: str) -> str:
    """Tell backends apart by what they mean for a detector."""
    if backend in {CUDA, TENSORRT}:
        return backend
    return "cpu" if _gpu_beside(backend) is None else "beside"


def _gpu_beside(backend: str) -> Gpu | None:
    """Return the device that a mask model's backend uses; None: it, or ONNX Runtime, uses none."""
    if backend in {CPU[0], "onnxruntime-cpu"} or choose_backend("onnxruntime")[0] != CUDA:
        return None
    preload_cuda()
    return process_gpu()
