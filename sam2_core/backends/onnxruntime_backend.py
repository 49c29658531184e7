"""Runs an exported model with ONNX Runtime on the CPU."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.backend_choice import quiet_onnxruntime
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.protocol import Backend, BackendInfo
from sam2_core.machine import MANY_CORES, usable_cores
from sam2_core.preprocess import planes_of, resize_square
from sam2_core.types import (
    DECODED,
    FEATURES,
    AutolabelError,
    DeviceMemoryError,
    EncoderImage,
    Features,
    LowResMasks,
    Prompts,
)

# Each core decodes boxes, or encodes close-ups, of its own, without waiting for the others after
# every operator, and few at a time, which stay in its cache: on sixteen cores 135 boxes took 313 ms
# in calls of two, 421 in calls of nine. More cores were not tried.
MOST_CALLS = 16
BOXES_OF_A_CALL = 2
# Inputs with a row for each prompt or each encoded image; those of features go whole to every call.
_OF_ROWS = ("points", "labels", "image_index", "mask_input", "image")
# The arena grows by what is asked for instead of doubling: decoder chunks need a few hundred
# megabytes that would otherwise be reserved twice over.
_CPU_PROVIDER = ("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
_OUT_OF_MEMORY = (
    "failed to allocate", "allocaterawinternal", "out of memory", "bad_alloc",
    # cuBLAS and cuDNN on a device that is nearly full, seen while a session was opened.
    "resource allocation failed", "status_alloc_failed",
)  # fmt: skip


def run_session(session: Any, outputs: Sequence[str], inputs: dict[str, Any]) -> list[Any]:
    """Run a session and turn out-of-memory errors into `DeviceMemoryError`."""
    try:
        return list(session.run(list(outputs), inputs))
    except MemoryError as error:
        raise DeviceMemoryError(f"out of memory: {error}") from error
    except Exception as error:  # onnxruntime's own exception classes are private
        if is_out_of_memory(error):
            raise DeviceMemoryError(f"out of memory: {error}") from error
        raise


def is_out_of_memory(error: Exception) -> bool:
    """Tell by its text whether an error of ONNX Runtime is about memory."""
    return any(word in str(error).lower() for word in _OUT_OF_MEMORY)


def open_session(
    path: Path,
    threads: int | None,
    providers: Sequence[Any],
    *,
    model: bytes | None = None,
) -> Any:
    """Open a graph file, or a model made of it.

    Raises:
        DeviceMemoryError: the device has no memory for it.
        AutolabelError: ONNX Runtime cannot read it; names the file.

    """
    import onnxruntime as ort

    # cuDNN says of every plan that it does not take that it does not take it.
    on_gpu = any("CUDA" in str(provider) for provider in providers)
    quiet_onnxruntime(trying=on_gpu)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or usable_cores()
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(model or str(path), options, providers=list(providers))
    except Exception as error:
        if is_out_of_memory(error):
            raise DeviceMemoryError(f"no memory left to load {path.name}: {error}") from error
        raise AutolabelError(
            f"ONNX Runtime {ort.__version__} cannot read the model file {path}: {error}. "
            "Remove its folder and export the model again (`autolabel models export`)"
        ) from error


class OnnxRuntimeBackend(Backend):
    """A model folder on ONNX Runtime's CPU provider.

    ONNX Runtime sessions may be run from several threads at once. Decoders are opened when they are
    first needed: for one image or several, with mask prompts or without.

    Args:
        folder: an exported model.
        threads: cores to use; all that the process may use when None.

    """

    def __init__(self, folder: ModelFolder, threads: int | None = None) -> None:
        self.folder = folder = folder.pinned()
        cores = threads or usable_cores()
        self._calls = min(cores, MOST_CALLS)
        self._callers = ThreadPoolExecutor(self._calls, "decoder")
        self._decoder_threads = cores // self._calls
        self._sessions: dict[str, Any] = {}
        self._lock = threading.Lock()
        encoder_threads = cores // 2 if cores >= MANY_CORES else cores
        if folder.close_ups:
            encoder_threads = self._decoder_threads
        self._encoder = self._open("encoder", encoder_threads)
        folder.hold_against(self._encoder.get_modelmeta().custom_metadata_map)
        self._single = folder.has("decoder_single")
        self._session("decoder_single" if self._single else "decoder")
        self.info = BackendInfo(
            stamp=folder.stamp("onnxruntime-cpu"),
            image_size=folder.image_size,
            device="cpu",
            close_ups=folder.close_ups,
        )

    def _open(self, name: str, threads: int) -> Any:
        session = open_session(self.folder.graph(name), threads, [_CPU_PROVIDER])
        self.folder.unchanged()
        return session

    def _session(self, name: str) -> Any:
        with self._lock:
            if name not in self._sessions:
                self._sessions[name] = self._open(name, self._decoder_threads)
            return self._sessions[name]

    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Encode B images, each uint8 (H, W, 3) RGB of any size, or squares."""
        size = self.info.image_size
        batch = planes_of([resize_square(image, size) for image in images])
        rows = 1 if self.folder.close_ups else len(images)
        data = self._run_in_calls(self._encoder, FEATURES, {"image": batch}, rows)
        return Features(dict(zip(FEATURES, data, strict=True)), len(images))

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts, some on each core."""
        inputs = dict(features.data)
        inputs["points"] = np.ascontiguousarray(prompts.points_model, np.float32)
        inputs["labels"] = np.ascontiguousarray(prompts.labels, np.int32)
        inputs["image_index"] = np.ascontiguousarray(prompts.image_index, np.int64)
        name = "decoder_single" if self._single and features.batch == 1 else "decoder"
        if prompts.mask_logits is not None:
            name = "decoder_mask"
            inputs["mask_input"] = np.ascontiguousarray(prompts.mask_logits[:, None], np.float32)
        session = self._session(name)
        taken = {node.name for node in session.get_inputs()}
        inputs = {key: value for key, value in inputs.items() if key in taken}
        logits, iou, score, stability = self._run_in_calls(
            session, DECODED, inputs, BOXES_OF_A_CALL
        )
        return LowResMasks(logits[:, 0], iou, score, stability)

    def _run_in_calls(
        self, session: Any, outputs: Sequence[str], inputs: dict[str, Any], rows: int
    ) -> list[Any]:
        """Run a graph on all rows of its inputs, so many in each of several calls."""
        count = max(len(value) for name, value in inputs.items() if name in _OF_ROWS)
        if count <= rows:
            return run_session(session, outputs, inputs)

        def run(start: int) -> list[Any]:
            part = {
                name: value[start : start + rows] if name in _OF_ROWS else value
                for name, value in inputs.items()
            }
            return run_session(session, outputs, part)

        parts = list(self._callers.map(run, range(0, count, rows)))
        return [np.concatenate(column) for column in zip(*parts, strict=True)]
