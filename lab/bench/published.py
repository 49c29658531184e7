"""The published decoder alone, for models that come without the published encoder.

The bundled model's package has room for one encoder. The published decoder takes the same features
in another layout; how long it takes does not depend on their values, so the restructured features
are laid out as it wants them. Only for timing: its masks mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import open_session, run_session
from sam2_core.backends.protocol import Backend, BackendInfo
from sam2_core.types import (
    DECODED,
    FEATURES,
    AutolabelError,
    Features,
    ImageArray,
    LowResMasks,
    Prompts,
)


class PublishedDecoderOnly(Backend):
    """decoder.onnx of a folder without an encoder, on ONNX Runtime's CPU provider."""

    def __init__(self, path: Path, beside: ModelFolder, threads: int | None) -> None:
        self._session = open_session(path, threads, ["CPUExecutionProvider"])
        self._shapes = {node.name: node.shape for node in self._session.get_inputs()}
        self.info = BackendInfo(beside.stamp("onnxruntime-cpu"), beside.image_size)

    def encode(self, images: Sequence[ImageArray]) -> Features:
        """Refuse: there is no encoder."""
        raise AutolabelError("this model comes without its published encoder")

    def laid_out(self, features: Features) -> Features:
        """Return features of the restructured encoder in the shapes of the published ones."""
        data = {}
        for name in FEATURES:
            array: npt.NDArray[Any] = features.data[name]
            flat = array.reshape(len(array), -1, array.shape[-1]).swapaxes(1, 2)
            shape = (len(array), *self._shapes[name][1:])
            data[name] = np.ascontiguousarray(flat).reshape(shape)
        return Features(data, features.batch)

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts."""
        inputs = {
            **features.data,
            "points": np.ascontiguousarray(prompts.points_model, np.float32),
            "labels": np.ascontiguousarray(prompts.labels, np.int32),
            "image_index": np.ascontiguousarray(prompts.image_index, np.int64),
        }
        logits, iou, score, stability = run_session(self._session, DECODED, inputs)
        return LowResMasks(logits[:, 0], iou, score, stability)
