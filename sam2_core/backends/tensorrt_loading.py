"""A model folder on TensorRT: the engines that it needs, where they are kept, and loading them."""

from __future__ import annotations

import functools
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.backends.gpu import process_gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.tensorrt_plan import (
    CLOSE_UP_BUCKETS,
    DEFAULT_BOX_BUCKETS,
    DEFAULT_IMAGE_BUCKETS,
    Buckets,
)
from sam2_core.cache import cache_folder
from sam2_core.machine import how_to_install
from sam2_core.machine_errors import first_line
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.backends.tensorrt_backend import TensorRTBackend
    from sam2_core.backends.tensorrt_build import BuildOptions

logger = logging.getLogger(__name__)


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


def load_tensorrt(folder: ModelFolder, options: BuildOptions | None = None) -> TensorRTBackend:
    """Load a model folder on TensorRT, building its engines first where the cache has none.

    Args:
        folder: an exported model.
        options: must be those of `autolabel models build` for its engines to be found.

    Raises:
        AutolabelError: no TensorRT, no GPU, or the graphs cannot be built.

    """
    require_tensorrt()
    from sam2_core.backends.tensorrt_backend import TensorRTBackend
    from sam2_core.backends.tensorrt_build import BuildOptions, build_engine

    gpu, folder = process_gpu(), folder.pinned()

    def build() -> dict[str, Path]:
        return {
            kind: build_engine(
                folder.graph(kind), kind, gpu=gpu.device.name,
                engines_dir=engines_folder(folder.cache),
                options=options or BuildOptions(buckets_for(folder)), note=logger.warning,
            ).path
            for kind in graphs_of(folder)
        }  # fmt: skip

    # Builders time kernels: on the device's thread nothing else is begun meanwhile.
    paths = gpu.run(build)
    folder.unchanged()
    return TensorRTBackend(folder, paths, gpu)


def buckets_for(
    folder: ModelFolder, boxes: tuple[int, ...] = (), images: tuple[int, ...] = ()
) -> Buckets:
    """Return the sizes that engines of a model folder are built for; its own where none are given.

    What the flow and `autolabel models build` must agree on.
    """
    if folder.close_ups:
        return Buckets(boxes or CLOSE_UP_BUCKETS, images or CLOSE_UP_BUCKETS, own_images=True)
    return Buckets(boxes or DEFAULT_BOX_BUCKETS, images or DEFAULT_IMAGE_BUCKETS)


def graphs_of(folder: ModelFolder) -> tuple[str, ...]:
    """Return the graphs of a model folder that become engines."""
    optional = ("decoder_single", "decoder_mask")
    return ("encoder", "decoder", *(name for name in optional if folder.has(name)))
