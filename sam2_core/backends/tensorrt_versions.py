"""What differs between TensorRT 10 and 11: everything that asks for the version is here."""

from __future__ import annotations

import tensorrt as trt

from sam2_core.installing import how_to_install
from sam2_core.types import AutolabelError

OLDEST = (10, 13)


def version() -> tuple[int, int]:
    """Return (major, minor) of the TensorRT that is installed, refusing what is too old."""
    major, minor = (int(part) for part in trt.__version__.split(".")[:2])
    if (major, minor) < OLDEST:
        raise AutolabelError(
            f"TensorRT {trt.__version__} is too old: at least {OLDEST[0]}.{OLDEST[1]} is needed "
            f"({how_to_install('tensorrt')})"
        )
    return major, minor


def full_version() -> str:
    """Return the installed version as engines are labeled with it."""
    text: str = trt.__version__
    return text


def strongly_typed_network_flags() -> int:
    """Return flags for `Builder.create_network`: the graph's own types decide every precision.

    On 10 that has to be asked for. From 11 on every network is strongly typed.
    """
    if version() >= (11, 0):
        return 0
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
