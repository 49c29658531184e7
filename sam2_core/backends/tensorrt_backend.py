"""An exported model on TensorRT: its engines, where they are kept, and what runs them.

Importing this needs TensorRT (`sam2_core.backend_choice.require_tensorrt`).
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from sam2_core.backends.cuda_backend import Buckets, CudaBackend, buckets_for, graphs_of
from sam2_core.backends.cuda_network import BUCKETS, CudaNetwork
from sam2_core.backends.gpu import Gpu, process_gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.tensorrt_engines import NAME_AND_VERSION, NETWORK, build_engine, target_of
from sam2_core.backends.tensorrt_runtime import LoadedEngine, load_engines
from sam2_core.cache import cache_folder, write_whole

logger = logging.getLogger(__name__)


def engines_folder(cache: str | Path | None = None) -> Path:
    """Return where engines are kept."""
    return cache_folder(cache) / "engines"


def load_tensorrt(folder: ModelFolder, gpu: Gpu | None = None) -> CudaBackend:
    """Load a model folder on TensorRT, building its engines first where the cache has none.

    Args:
        folder: an exported model.
        gpu: the process's when None.

    Raises:
        AutolabelError: no GPU, or the graphs cannot be built.

    """
    device, folder = gpu or process_gpu(), folder.pinned()
    # Builders may time kernels: on the device's thread nothing else is started meanwhile.
    paths = device.run(lambda: build_all(folder, target_of(device.device), logger.warning))
    folder.unchanged()
    engines = device.run(lambda: load_engines(paths, device))
    made_by = NAME_AND_VERSION.lower().replace(" ", "-")
    return CudaBackend(folder, device, engines, buckets_for(folder), made_by)


def build_all(folder: ModelFolder, target: str, note: Callable[[str], None]) -> dict[str, Path]:
    """Return the engines of a model folder by the names of their graphs; see `build_engine`."""
    return {
        kind: build_engine(
            folder.graph(kind), kind, target=target, engines_dir=engines_folder(folder.cache),
            buckets=buckets_for(folder), note=note,
        )
        for kind in graphs_of(folder)
    }  # fmt: skip


def network_engine(
    model: bytes, target: str, engines: Path, images: Sequence[int] = BUCKETS
) -> Path:
    """Return the engine of a network, such as a detector, from the cache where it was built before.

    Args:
        model: bytes of the ONNX file.
        target: see `build_engine`.
        engines: the cache of engines.
        images: numbers of images that it takes.

    Raises:
        AutolabelError: TensorRT cannot build it.

    """
    graph = engines / "networks" / f"{hashlib.sha256(model).hexdigest()[:16]}.onnx"
    if not graph.is_file():
        write_whole(graph, model)
    buckets = Buckets(images=tuple(images))
    return build_engine(graph, NETWORK, target=target, engines_dir=engines, buckets=buckets)


def tensorrt_network(
    path: Path, data: bytes, gpu: Gpu, engines: Path, images: Sequence[int] = BUCKETS
) -> CudaNetwork:
    """Load a network on TensorRT, building its engine first where there is none.

    Args:
        path: the ONNX file, for messages.
        data: its bytes.
        gpu: the device.
        engines: the cache of engines.
        images: numbers of images that it takes.

    Raises:
        AutolabelError: TensorRT cannot build or load it.

    """

    def load() -> LoadedEngine:
        built = network_engine(data, target_of(gpu.device), engines, images)
        return load_engines({NETWORK: built}, gpu)[NETWORK]

    return CudaNetwork(path, data, gpu, {}, buckets=images, graph=gpu.run(load))
