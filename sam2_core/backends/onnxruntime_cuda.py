"""Runs an exported model with ONNX Runtime's CUDA provider."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from sam2_core.backend_choice import preload_cuda
from sam2_core.backends.cuda_backend import CudaBackend, buckets_for, graphs_of
from sam2_core.backends.cuda_graphs import Graph, Shape
from sam2_core.backends.gpu import Gpu, process_gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import open_session
from sam2_core.backends.onnxruntime_graphs import FixedGraph, cuda_provider
from sam2_core.machine import how_to_install
from sam2_core.types import BOX_POINTS, FEATURES, AutolabelError

logger = logging.getLogger(__name__)


class OnnxRuntimeCudaBackend(CudaBackend):
    """A model folder on ONNX Runtime's CUDA provider.

    Args:
        folder: an exported model.
        gpu: the process's when None.
        providers: ONNX Runtime's providers; CUDA on a stream of the device when None.

    """

    def __init__(
        self, folder: ModelFolder, gpu: Gpu | None = None, providers: Sequence[Any] | None = None
    ) -> None:
        if gpu is None:
            preload_cuda()
            gpu = process_gpu()
        self.folder, self.gpu, self._providers = folder.pinned(), gpu, providers
        graphs = gpu.run(self._opened)
        super().__init__(self.folder, gpu, graphs, buckets_for(folder), "onnxruntime-cuda")

    def _open(self, name: str, *, captured: bool = True) -> Any:
        """Open a graph file, the one that the stamp names; uncaptured where it cannot be."""
        path = self.folder.graph(name)
        providers = self._providers or cuda_provider(self.gpu.stream, captured=captured)
        try:
            session = open_session(path, None, providers)
        except AutolabelError as error:
            if not captured or "graph capture" not in str(error):
                raise
            logger.warning("%s runs without a CUDA graph: %s", path, error)
            return self._open(name, captured=False)
        if self._providers is None and session.get_providers()[0] != "CUDAExecutionProvider":
            raise AutolabelError(
                "ONNX Runtime could not load its CUDA provider: install the extra gpu "
                f"({how_to_install('gpu')}), or choose --backend onnxruntime-cpu"
            )
        self.folder.unchanged()
        if name == "encoder":
            self.folder.hold_against(session.get_modelmeta().custom_metadata_map)
        return session

    def _opened(self) -> dict[str, Graph]:
        """Open encoder and decoders."""
        folder, gpu, grid = self.folder, self.gpu, self.folder.image_size // 4
        prompts: dict[str, Shape] = {
            "points": (BOX_POINTS, 2), "labels": (BOX_POINTS,), "logits": (1, grid, grid),
            "mask_input": (1, grid, grid),
        }  # fmt: skip
        _, *decoders = graphs_of(folder)
        graphs: dict[str, Graph] = {
            name: FixedGraph(partial(self._open, name), gpu, prompts) for name in decoders
        }
        # The decoder declares the shapes of features in full.
        rows = {name: graphs["decoder"].declared[name].row for name in FEATURES}
        graphs["encoder"] = FixedGraph(partial(self._open, "encoder"), gpu, rows)
        return graphs
