"""Runs an exported model with ONNX Runtime on the CPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.preprocess import resize_square
from sam2_core.types import (
    AutolabelError,
    BackendInfo,
    DeviceMemoryError,
    Features,
    ImageArray,
    LowResMasks,
    Prompts,
)

_FEATURES = ("embedding", "high_res_s0", "high_res_s1")
_OUT_OF_MEMORY = ("failed to allocate", "allocaterawinternal", "out of memory", "bad_alloc")


def physical_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_session(session: Any, outputs: Sequence[str], inputs: dict[str, Any]) -> list[Any]:
    """Run a session and turn out-of-memory errors into `DeviceMemoryError`."""
    try:
        return list(session.run(list(outputs), inputs))
    except MemoryError as error:
        raise DeviceMemoryError(f"out of memory: {error}") from error
    except Exception as error:  # onnxruntime's own exception classes are private
        if any(word in str(error).lower() for word in _OUT_OF_MEMORY):
            raise DeviceMemoryError(f"out of memory: {error}") from error
        raise


def open_session(path: Path, threads: int | None, providers: Sequence[Any]) -> Any:
    """Open a graph file; `AutolabelError` naming it when ONNX Runtime cannot read it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or physical_cores()
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:
        raise AutolabelError(
            f"ONNX Runtime {ort.__version__} cannot read the model file {path}: {error}. "
            "Remove its folder and export the model again (`autolabel models export`)"
        ) from error


class OnnxRuntimeBackend:
    """A model folder on ONNX Runtime's CPU provider.

    ONNX Runtime sessions may be run from several threads at once; nothing else is kept.

    Args:
        folder: an exported model.
        threads: of one operator; all cores that the process may use when None.

    """

    def __init__(self, folder: ModelFolder, threads: int | None = None) -> None:
        self.folder = folder
        self._open = partial(open_session, threads=threads, providers=[_cpu_provider()])
        self._encoder = self._open(folder.graph("encoder"))
        self._decoder = self._open(folder.graph("decoder"))
        self._mask_decoder: Any = None
        self._lock = threading.Lock()
        self._info = BackendInfo(
            stamp=folder.stamp("onnxruntime-cpu"),
            image_size=folder.image_size,
            providers=("CPUExecutionProvider",),
            device="cpu",
        )

    @property
    def info(self) -> BackendInfo:
        """Stamp, input size and where it runs."""
        return self._info

    def encode(self, images: Sequence[ImageArray]) -> Features:
        """Encode B images, each uint8 (H, W, 3) RGB of any size."""
        size = self._info.image_size
        batch = np.stack([resize_square(image, size) for image in images])
        data = run_session(self._encoder, _FEATURES, {"image": batch})
        sizes = tuple((image.shape[0], image.shape[1]) for image in images)
        return Features(dict(zip(_FEATURES, data, strict=True)), len(images), sizes)

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts in one call."""
        inputs = dict(features.data)
        inputs["points"] = np.ascontiguousarray(prompts.points_model, np.float32)
        inputs["labels"] = np.ascontiguousarray(prompts.labels, np.int32)
        inputs["image_index"] = np.ascontiguousarray(prompts.image_index, np.int64)
        grid = self._info.image_size // 4
        session = self._decoder
        if prompts.mask_logits is not None:
            session = self._decoder_of_masks()
            inputs["mask_input"] = np.ascontiguousarray(prompts.mask_logits[:, None], np.float32)
        names = ("logits", "predicted_iou", "object_score", "stability")
        logits, iou, score, stability = run_session(session, names, inputs)
        origin = np.zeros((len(prompts), 2), np.int32)
        return LowResMasks(
            logits[:, 0].astype(np.float32, copy=False), origin, (grid, grid), iou, score, stability
        )

    def _decoder_of_masks(self) -> Any:
        """Open the decoder that takes mask prompts when it is first needed."""
        with self._lock:
            if self._mask_decoder is None:
                self._mask_decoder = self._open(self.folder.graph("decoder_mask"))
            return self._mask_decoder


def _cpu_provider() -> tuple[str, dict[str, str]]:
    # The arena grows by what is asked for instead of doubling: decoder chunks need a few hundred
    # megabytes that would otherwise be reserved twice over.
    return ("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
