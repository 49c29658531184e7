"""Opens a model folder's graphs with ONNX Runtime's CUDA provider, as fast as each can be run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sam2_core.backends.gpu import Gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import open_session
from sam2_core.backends.onnxruntime_fusion import fused_model
from sam2_core.backends.onnxruntime_graph import cuda_provider
from sam2_core.installing import how_to_install
from sam2_core.types import AutolabelError, DeviceMemoryError

logger = logging.getLogger(__name__)


class CudaSessions:
    """Sessions of a model folder's graphs.

    Args:
        folder: pinned.
        gpu: its stream is what CUDA works on.
        providers: ONNX Runtime's providers; CUDA on a stream of the device when None.
        fused: with ONNX Runtime's own operators (see `onnxruntime_fusion`), where it can.

    """

    def __init__(
        self, folder: ModelFolder, gpu: Gpu, providers: Sequence[Any] | None, *, fused: bool
    ) -> None:
        self._folder, self._gpu, self._providers, self._fused = folder, gpu, providers, fused

    def open(self, name: str, *, captured: bool = True, fused: bool = True) -> Any:
        """Open a graph file, the one that the stamp names."""
        session = self._session(name, captured=captured, fused=fused)
        self._folder.unchanged()
        return session

    def _session(self, name: str, *, captured: bool, fused: bool) -> Any:
        """Open a graph file; without CUDA graphs or fused operators where that is not possible."""
        path = self._folder.graph(name)
        if self._providers is not None:
            return open_session(path, None, self._providers)
        providers = cuda_provider(self._gpu.stream, captured=captured)
        model = fused_model(path) if fused and self._fused else None
        try:
            session = open_session(path, None, providers, model=model)
        except DeviceMemoryError:
            raise
        except AutolabelError as error:
            if model is not None:
                logger.warning("%s runs without fused operators: %s", path, error)
                return self._session(name, captured=captured, fused=False)
            if not captured or "graph capture" not in str(error):
                raise
            logger.warning("%s runs without a CUDA graph: %s", path, error)
            return self._session(name, captured=False, fused=False)
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise AutolabelError(
                "ONNX Runtime could not load its CUDA provider: install the extra gpu "
                f"({how_to_install('gpu')}), or choose --backend onnxruntime-cpu"
            )
        return session
