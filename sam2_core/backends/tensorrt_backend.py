"""An exported model on TensorRT: its engines, where they are kept, and what runs them."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Mapping
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
        from sam2_core.backends.tensorrt_engines import NAME, NAME_AND_VERSION, load_engines

        engines = gpu.run(lambda: load_engines(engine_paths, gpu))
        own = buckets_for(folder)
        made_by = (NAME_AND_VERSION.lower().replace(" ", "-"), NAME)
        super().__init__(folder, gpu, engines, (own.images, own.boxes), made_by)


def has_tensorrt() -> bool:
    """Whether one of the two libraries is installed."""
    return any(find_spec(name) for name in ("tensorrt", "tensorrt_rtx_bindings"))


def require_tensorrt() -> None:
    """Raise `AutolabelError` where TensorRT is not installed, or cannot be loaded."""
    problem = runtime_problem("") if has_tensorrt() else "TensorRT is not installed"
    if problem:
        raise AutolabelError(
            f"{problem}: {how_to_install('tensorrt')} (Linux x86_64, NVIDIA GPU), "
            "or use another backend, which needs no engines"
        )


@functools.cache
def runtime_problem(capability: str) -> str:
    """Say why TensorRT, which is installed, runs nothing on a GPU here; "" where it can.

    Args:
        capability: the GPU's, such as sm89; "": whether the library loads at all.

    """
    try:
        from sam2_core.backends.tensorrt_engines import opens_on

        return opens_on(capability)
    except Exception as error:  # noqa: BLE001 - whatever it is, another backend serves
        return f"TensorRT opens no runtime ({first_line(error)})"


def engines_folder(cache: str | Path | None = None) -> Path:
    """Return where engines are kept."""
    return cache_folder(cache) / "engines"


def load_tensorrt(folder: ModelFolder) -> TensorRTBackend:
    """Load a model folder on TensorRT, building its engines first where the cache has none.

    Raises:
        AutolabelError: no TensorRT, no GPU, or the graphs cannot be built.

    """
    require_tensorrt()
    from sam2_core.backends.tensorrt_engines import target_of

    gpu, folder = process_gpu(), folder.pinned()
    # Builders may time kernels: on the device's thread nothing else is started meanwhile.
    paths = gpu.run(lambda: build_all(folder, target_of(gpu.device), logger.warning))
    folder.unchanged()
    return TensorRTBackend(folder, paths, gpu)


def build_all(folder: ModelFolder, target: str, note: Callable[[str], None]) -> dict[str, Path]:
    """Return the engines of a model folder by the names of their graphs; see `build_engine`."""
    from sam2_core.backends.tensorrt_engines import build_engine

    return {
        kind: build_engine(
            folder.graph(kind), kind, target=target, engines_dir=engines_folder(folder.cache),
            buckets=buckets_for(folder), note=note,
        )
        for kind in graphs_of(folder)
    }  # fmt: skip


def buckets_for(folder: ModelFolder) -> Buckets:
    """Return the sizes that engines of a model folder are built for."""
    from sam2_core.backends.tensorrt_engines import OF_CLOSE_UPS, Buckets

    return OF_CLOSE_UPS if folder.close_ups else Buckets()


def graphs_of(folder: ModelFolder) -> tuple[str, ...]:
    """Return the graphs of a model folder that become engines."""
    optional = ("decoder_single", "decoder_mask")
    return ("encoder", "decoder", *(name for name in optional if folder.has(name)))


def network_engine(data: bytes, target: str, engines: Path) -> Path:
    """Return the engine of a network, such as a detector, from the cache where it was built before.

    Args:
        data: bytes of the ONNX file; of one image, or any number.
        target: see `build_engine`.
        engines: the cache of engines.

    Raises:
        AutolabelError: TensorRT cannot build it.

    """
    from sam2_core.backends.tensorrt_engines import NETWORK, Buckets, build_engine

    model = in_batches(data)
    graph = engines / "networks" / f"{hashlib.sha256(model).hexdigest()[:16]}.onnx"
    if not graph.is_file():
        write_whole(graph, model)
    buckets = Buckets(images=BUCKETS)
    return build_engine(graph, NETWORK, target=target, engines_dir=engines, buckets=buckets)


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
    from sam2_core.backends.tensorrt_engines import NETWORK, LoadedEngine, load_engines, target_of

    def load() -> LoadedEngine:
        built = network_engine(data, target_of(gpu.device), engines)
        return load_engines({NETWORK: built}, gpu)[NETWORK]

    return CudaNetwork(path, data, gpu, {}, graph=gpu.run(load))
