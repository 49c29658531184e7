"""An exported model on TensorRT: its engines, where they are kept, and what runs them."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.backends.cuda_backend import CudaBackend
from sam2_core.backends.gpu import Gpu, process_gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_cuda import BUCKETS, CudaNetwork, in_batches
from sam2_core.cache import cache_folder, write_whole
from sam2_core.machine import how_to_install
from sam2_core.machine_errors import first_line
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.backends.tensorrt_engines import Buckets

logger = logging.getLogger(__name__)


class TensorRTBackend(CudaBackend):
    """Encoder and decoder engines on the stream of a GPU, beside the detector's.

    Args:
        folder: an exported model, pinned.
        engine_paths: engines of its graphs, by their names.
        gpu: the process's.

    """

    def __init__(self, folder: ModelFolder, engine_paths: Mapping[str, Path], gpu: Gpu) -> None:
        require_tensorrt()
        import tensorrt as trt

        from sam2_core.backends.tensorrt_engines import load_engines

        self._engines = gpu.run(lambda: load_engines(engine_paths, gpu))
        buckets = (
            self._engines["encoder"].buckets("image"),
            self._engines["decoder"].buckets("points"),
        )
        made_by = (f"tensorrt-{trt.__version__}", "TensorRT")
        super().__init__(folder, gpu, self._engines, buckets, made_by)


def require_tensorrt() -> None:
    """Raise `AutolabelError` where TensorRT is not installed."""
    if find_spec("tensorrt") is None:
        raise AutolabelError(
            f"TensorRT is not installed: {how_to_install('tensorrt')} (Linux, NVIDIA GPU), or use "
            "another backend, which needs no engines"
        )


@functools.cache
def runtime_problem() -> str:
    """Say why TensorRT, which is installed, opens no runtime here; "" where it does."""
    try:
        import tensorrt as trt

        trt.Runtime(trt.Logger(trt.Logger.WARNING))
    except Exception as error:  # noqa: BLE001 - whatever it is, another backend serves
        return f"TensorRT opens no runtime ({first_line(error)})"
    return ""


def engines_folder(cache: str | Path | None = None) -> Path:
    """Return where engines and timing caches are kept."""
    return cache_folder(cache) / "engines"


def load_tensorrt(folder: ModelFolder) -> TensorRTBackend:
    """Load a model folder on TensorRT, building its engines first where the cache has none.

    Raises:
        AutolabelError: no TensorRT, no GPU, or the graphs cannot be built.

    """
    require_tensorrt()
    from sam2_core.backends.tensorrt_engines import build_engine

    gpu, folder = process_gpu(), folder.pinned()

    def build() -> dict[str, Path]:
        return {
            kind: build_engine(
                folder.graph(kind), kind, gpu=gpu.device.name,
                engines_dir=engines_folder(folder.cache), buckets=buckets_for(folder),
                note=logger.warning,
            )
            for kind in graphs_of(folder)
        }  # fmt: skip

    # Builders time kernels: on the device's thread nothing else is started meanwhile.
    paths = gpu.run(build)
    folder.unchanged()
    return TensorRTBackend(folder, paths, gpu)


def buckets_for(folder: ModelFolder) -> Buckets:
    """Return the sizes that engines of a model folder are built for."""
    from sam2_core.backends.tensorrt_engines import CLOSE_UP_BUCKETS, Buckets

    return CLOSE_UP_BUCKETS if folder.close_ups else Buckets()


def graphs_of(folder: ModelFolder) -> tuple[str, ...]:
    """Return the graphs of a model folder that become engines."""
    optional = ("decoder_single", "decoder_mask")
    return ("encoder", "decoder", *(name for name in optional if folder.has(name)))


def tensorrt_network(path: Path, data: bytes, gpu: Gpu, engines: Path) -> CudaNetwork:
    """Load a network on TensorRT, building its engine first where there is none.

    Args:
        path: the ONNX file, for messages.
        data: its bytes.
        gpu: the device.
        engines: the cache of engines.

    Raises:
        AutolabelError: TensorRT cannot build or load it.

    """
    from sam2_core.backends.tensorrt_engines import (
        NETWORK,
        Buckets,
        LoadedEngine,
        build_engine,
        load_engines,
    )

    model = in_batches(data)
    graph = engines / "networks" / f"{hashlib.sha256(model).hexdigest()[:16]}.onnx"
    if not graph.is_file():
        write_whole(graph, model)

    def load() -> LoadedEngine:
        built = build_engine(
            graph, NETWORK, gpu=gpu.device.name, engines_dir=engines,
            buckets=Buckets(images=BUCKETS),
        )  # fmt: skip
        return load_engines({NETWORK: built}, gpu)[NETWORK]

    return CudaNetwork(path, data, gpu, {}, graph=gpu.run(load))
