"""Runs an exported model with ONNX Runtime's CUDA provider, captured by it as CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy.typing as npt

from sam2_core.backends.cuda_backend import CudaBackend
from sam2_core.backends.gpu import Gpu, Graph, Shape, process_gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import run_session
from sam2_core.backends.onnxruntime_graph import CudaSessions, FixedGraph
from sam2_core.library_messages import preload_cuda
from sam2_core.types import BOX_POINTS, DECODED, FEATURES

IMAGE_BUCKETS = (1, 2, 4)
CLOSE_UP_BUCKETS = (8, 16, 32, 64)
BOX_BUCKETS = (1, 8, 32, 64, 136)


class OnnxRuntimeCudaBackend(CudaBackend):
    """A model folder on ONNX Runtime's CUDA provider.

    Args:
        folder: an exported model.
        gpu: the process's when None.
        providers: ONNX Runtime's providers; CUDA on a stream of the device when None.
        fused: with ONNX Runtime's own operators (see `onnxruntime_fusion`), where it can.

    """

    def __init__(
        self,
        folder: ModelFolder,
        gpu: Gpu | None = None,
        providers: Sequence[Any] | None = None,
        *,
        fused: bool = True,
    ) -> None:
        if gpu is None:
            preload_cuda()
            gpu = process_gpu()
        folder = folder.pinned()
        self._sessions = CudaSessions(folder, gpu, providers, fused=fused)
        self._free: dict[str, Any] = {}
        graphs = gpu.run(partial(self._opened, folder, gpu))
        # Every close-up has one box: as many boxes as images.
        whole, crops = (IMAGE_BUCKETS, BOX_BUCKETS), (CLOSE_UP_BUCKETS, CLOSE_UP_BUCKETS)
        buckets = crops if folder.close_ups else whole
        super().__init__(
            folder, gpu, graphs, buckets, ("onnxruntime-cuda", "CUDAExecutionProvider")
        )

    def _opened(self, folder: ModelFolder, gpu: Gpu) -> dict[str, Graph]:
        """Open encoder and decoders."""
        grid = folder.image_size // 4
        prompts: dict[str, Shape] = {
            "points": (BOX_POINTS, 2), "labels": (BOX_POINTS,), "logits": (1, grid, grid),
        }  # fmt: skip
        graphs: dict[str, Graph] = {}
        for name in ("decoder", "decoder_single"):
            if folder.has(name):
                graphs[name] = FixedGraph(partial(self._sessions.open, name), gpu, prompts)
        # The decoder declares the shapes of features in full.
        rows = {name: graphs["decoder"].declared[name].row for name in FEATURES}
        graphs["encoder"] = FixedGraph(partial(self._sessions.open, "encoder"), gpu, rows)
        return graphs

    def _release(self) -> None:
        self._free.clear()
        super()._release()

    def _run_freely(self, name: str, inputs: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
        if name not in self._free:
            self._free[name] = self._sessions.open(name, captured=False, fused=False)
        found = run_session(self._free[name], DECODED, inputs)
        return dict(zip(DECODED, found, strict=True))
