"""How many CPU cores there are for us."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sam2_core.number_variables import CORES

# Read when the libraries are loaded: BLAS, PyTorch and Arrow's computing, Intel's BLAS, OpenCV.
_OF_LIBRARIES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
# Arrow's threads that wait for storage: by itself it has eight.
_WAITING, _FEWEST_WAITING, _MOST_WAITING = "ARROW_IO_THREADS", 2, 8


def usable_cores() -> int:
    """Return the number of cores this process may use.

    Containers and taskset limit it, and `AUTOLABEL_CORES` where others work beside it.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, CORES.usable() or cores)


def share_of(cores: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return variables that keep a process and the libraries in it to a share of the cores.

    Args:
        cores: how many it may use.
        environment: what it would have else; who asks for fewer threads there gets fewer.

    """
    wanted = dict.fromkeys(_OF_LIBRARIES, cores)
    wanted[_WAITING] = min(max(cores, _FEWEST_WAITING), _MOST_WAITING)
    return {CORES.name: str(cores)} | {
        name: str(_least(count, environment.get(name, ""))) for name, count in wanted.items()
    }


def _least(count: int, set_before: str) -> int:
    return min(count, int(set_before)) if set_before.isdigit() and int(set_before) else count
