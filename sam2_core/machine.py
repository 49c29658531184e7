"""The machine: cores and packages, and the variables that limit what is used of it.

Every start imports this, and before NumPy: so it imports next to nothing.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NumberVariable:
    """A variable with a whole number between bounds.

    Attributes:
        name: of the variable.
        means: what it may be, after "expected".
        least: the smallest number.
        most: the largest number.

    """

    name: str
    means: str
    least: int
    most: int = 2**31

    def usable(self, environment: Mapping[str, str] = os.environ) -> int | None:
        """Return the number; None where the variable is not set, or holds none that it may."""
        text = environment.get(self.name, "").strip()
        number = int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else -1
        return number if self.least <= number <= self.most else None

    def read(self, environment: Mapping[str, str] = os.environ) -> int | None:
        """Return the number; None where the variable is not set, or empty.

        Raises:
            AutolabelError: it holds none, or one out of bounds.

        """
        number = self.usable(environment)
        if number is None and (text := environment.get(self.name, "").strip()):
            from sam2_core.types import AutolabelError  # which imports NumPy

            raise AutolabelError(f"{self.name}={text}: expected {self.means}; or unset it")
        return number


# Set for each of several workers on a machine: its share.
CORES = NumberVariable("AUTOLABEL_CORES", "how many CPU cores to use, 1 or more", 1)
DEVICE_PROCESSES = NumberVariable(
    "AUTOLABEL_DEVICE_PROCESSES",
    "how many processes share a GPU, 0 for none beside the run's own",
    0,
)
METRICS_PORT = NumberVariable("AUTOLABEL_METRICS_PORT", "a port, 1 to 65535", 1, 65535)
NUMBERS = (DEVICE_PROCESSES, CORES, METRICS_PORT)


# Read when the libraries are loaded: BLAS, PyTorch and Arrow's computing, Intel's BLAS, OpenCV.
_OF_LIBRARIES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
# Arrow's threads that wait for storage: by itself it has eight.
_WAITING, _FEWEST_WAITING, _MOST_WAITING = "ARROW_IO_THREADS", 2, 8


# Two frames at a time make better use of so many cores than one: on sixteen they took 347 ms each
# with half of the cores for each encoder, and a frame alone took 508.
MANY_CORES = 8


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
    for name, count in wanted.items():
        before = environment.get(name, "")
        wanted[name] = min(count, int(before)) if before.isdigit() and int(before) else count
    return {name: str(count) for name, count in ({CORES.name: cores} | wanted).items()}


def how_to_install(extra: str) -> str:
    """Return what installs an extra of this package, named as in pyproject.toml."""
    return (
        f"`make setup EXTRAS={extra}` in a checkout of this project, else "
        f"pip install 'sam2-autolabel[{extra}]'"
    )


def of_extra(module: str, what: str, extra: str) -> Any:
    """Return a module that comes with an extra of this package.

    Args:
        module: its name.
        what: needs it.
        extra: as for `how_to_install`.

    Raises:
        AutolabelError: it is not installed.

    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        from sam2_core.types import AutolabelError  # which imports NumPy

        raise AutolabelError(
            f"{what} needs the package {module.partition('.')[0]}: {how_to_install(extra)}"
        ) from error


def gpu_names() -> list[str]:
    """Name, memory and driver of every NVIDIA GPU; none where nothing tells."""
    import subprocess

    command = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [
        line.strip() for line in done.stdout.splitlines() if line.strip() and not done.returncode
    ]


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those Python packages that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def product_version() -> str:
    """Return this package's version; "unknown" where a copy runs that is not installed."""
    return installed_versions(["sam2-autolabel"]).get("sam2-autolabel", "unknown")
