"""A Triton server as a child process: started, watched, stopped; nothing of it stays behind."""

from __future__ import annotations

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
from functools import cached_property
from pathlib import Path
from typing import IO

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


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the server's own way to its models
_PREFIX = "autolabel-triton-"
# Of the folder with the repository and the log of a server.
_FOLDER = "autolabel-serve-"
_STORE = "store"


def new_prefix() -> str:
    """Return a prefix for the shared memory of one server, whose folder there is made.

    The folder stays until `remove_shared_memory`, however often the server starts anew: in its
    place nobody else can make one.
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


@dataclass(eq=False)
class RunningServer:
    """A server that runs as a child of this process.

    Attributes:
        process: tritonserver.
        prefix: of the names of its shared memory.
        log: its output, where it has a file.

    """

    process: subprocess.Popen[bytes]
    prefix: str
    log: Path | None = None

    @cached_property
    def _client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(verify=False, uds=str(socket_of(self.prefix, "http")))
        return httpx.Client(transport=transport, base_url="http://triton/v2")

    def load(self, model: str, loading_s: float) -> None:
        """Load the versions of a model that its folder has now; the one before answers meanwhile.

        Raises:
            AutolabelError: it cannot be loaded; the one before goes on.

        """
        try:
            url = f"/repository/models/{model}/load"
            answer = self._client.post(url, json={}, timeout=loading_s + _START_S)
        except httpx.TransportError as error:
            raise AutolabelError(f"{model} is not loaded: {error}") from error
        self._close_memory()
        if not answer.is_success:
            raise AutolabelError(f"{model} is not loaded: {answer.text}")

    def _close_memory(self) -> None:
        """Close the models' memory, which has the images of requests, to other users.

        Triton makes it readable for everybody, whatever the umask.
        """
        for path in SHARED_MEMORY.glob(f"{self.prefix}-*"):
            if path.is_file():
                path.chmod(0o600)

    def wait_ready(self, loading_s: float = ModelSettings.loading_s) -> None:
        """Wait until all models are loaded.

        Args:
            loading_s: as the models have it: each ends by itself when it takes longer.

        Raises:
            AutolabelError: the server has ended, or is not ready well after that.

        """
        patience_s = loading_s + _START_S
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AutolabelError(
                    self.why_ended(self.process.returncode) + self._too_slow(loading_s)
                )
            with contextlib.suppress(httpx.TransportError):
                if self._client.get("/health/ready").is_success:
                    self._close_memory()
                    return
            time.sleep(_POLL_S)
        raise AutolabelError(
            f"the Triton server was not ready within {patience_s:.0f} s{self._says()}"
        )

    def why_ended(self, status: int) -> str:
        """Say that it has ended, and what it said last."""
        return f"the Triton server has ended with status {status}{self._says()}"

    def _says(self) -> str:
        return f"; its log says:\n{_last_errors(self.log)}" if self.log else ""

    def _too_slow(self, loading_s: float) -> str:
        if self.log is None or _TIMEOUT not in self.log.read_text(errors="replace"):
            return ""
        return (
            f"\nA model was not loaded within {loading_s:.0f} s and was ended; above is where it "
            "stood. On a busy machine, or where engines are built first, give it more: "
            "--load-timeout"
        )

    def stop(self, *, now: bool = False) -> None:
        """Stop it, with its models' processes, and empty its shared memory."""
        if self.process.poll() is None and not now:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        for path in SHARED_MEMORY.glob(f"{self.prefix}-*"):
            if path.is_file():
                path.unlink(missing_ok=True)
        shutil.rmtree(_folder_of(self.prefix) / _STORE, ignore_errors=True)

    def kill(self) -> None:
        """End it and its models' processes without waiting for anything."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own: they are in it


def _last_errors(log: Path) -> str:
    text = log.read_text(errors="replace")
    lines = text.splitlines()
    if _TIMEOUT in text:
        first = next(number for number, line in enumerate(lines) if line.startswith(_TIMEOUT))
        return "\n".join(lines[first : first + _STACK_LINES])
    errors = [line for line in lines if "error" in line.lower() or line.startswith("E")]
    return "\n".join((errors or lines)[-8:])


def start_server(
    installed: InstalledServer,
    repository: Path,
    models: Sequence[str],
    options: ServerOptions,
    *,
    prefix: str,
    log: Path | None = None,
) -> RunningServer:
    """Start a server; it ends with this process.

    Args:
        installed: which one.
        repository: model repository.
        models: to load.
        options: where gRPC listens.
        prefix: as `new_prefix` made it.
        log: file for its output; this process's stderr when None.

    """
    if shutil.which("bash", path=installed.environment(os.environ)["PATH"]) is None:
        raise AutolabelError("Triton starts its models through bash, which is not on the PATH")
    for protocol in ("http", "metrics"):
        socket_of(prefix, protocol).unlink(missing_ok=True)
    command = _command(installed, repository, models, options, prefix)
    store = {STORE_VARIABLE: str(_folder_of(prefix) / _STORE)}
    with contextlib.ExitStack() as stack:
        output: IO[bytes] | None = stack.enter_context(log.open("ab")) if log else None
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output or 2, stderr=output,
            env=installed.environment(os.environ) | store, start_new_session=True,
            umask=0o077,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - one call of the C library
        )  # fmt: skip
    return RunningServer(process, prefix, log)


def _end_with_parent() -> None:
    _PRCTL(_PDEATHSIG, signal.SIGTERM)


def _command(
    installed: InstalledServer,
    repository: Path,
    models: Sequence[str],
    options: ServerOptions,
    prefix: str,
) -> list[str]:
    closed = "shared-memory,model-config,model-repository,trace,logging"
    tls, clients = [], []
    if options.tls_certificate:
        tls = [
            "--grpc-use-ssl=true", f"--grpc-server-cert={options.tls_certificate}",
            f"--grpc-server-key={options.tls_key}",
        ]  # fmt: skip
    if options.tls_clients:
        clients = ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={options.tls_clients}"]
    return [
        str(installed.binary),
        f"--model-repository={repository}",
        f"--backend-directory={installed.backends}",
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


class SupervisedServer:
    """A Triton server and the processes of its models.

    Triton goes on without a process that was killed: it says that it is healthy, and refuses every
    request to that model.

    Args:
        start: starts a server, and another one of the same addresses after it.
        repository: of its models; versions that appear in it are loaded, without a pause.
        loading_s: as `RunningServer.wait_ready` takes it.
        tell: takes what happens.

    Attributes:
        told_to_end: whether `end` was called.

    """

    def __init__(
        self,
        start: Callable[[], RunningServer],
        repository: Path,
        loading_s: float,
        tell: Callable[[str], object],
    ) -> None:
        self._start, self._loading_s, self._tell = start, loading_s, tell
        self._repository = repository
        self._seen = self._loaded = _versions_in(repository)
        self.server = start()
        self.told_to_end = False
        self._zombies: set[int] = set()

    def end(self) -> None:
        """Let the server end; at once when told a second time. For signal handlers."""
        if self.told_to_end:
            self.server.kill()
            return
        self.told_to_end = True
        self.server.process.terminate()

    def wait_ready(self) -> None:
        """Wait until the models are loaded; returns early when told to end."""
        try:
            self.server.wait_ready(self._loading_s)
        except AutolabelError:
            if not self.told_to_end:
                raise

    def wait(self) -> None:
        """Wait until the server has ended because it was told to.

        Raises:
            AutolabelError: it has ended by itself, or does not start anew.

        """
        while not self.told_to_end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self.server.process.wait(_LOOK_S)
                if not self.told_to_end:
                    raise AutolabelError(self.server.why_ended(status))
            if self._has_dead_models():
                self._start_anew()
            self._load_what_changed()
        # Triton may wait for ever for a request that is being computed, or crash in its exit.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.process.wait(STOP_S)
        self.server.stop(now=True)

    def _load_what_changed(self) -> None:
        """Load versions that were written, and let go of those that were removed."""
        before, self._seen = self._seen, _versions_in(self._repository)
        if self._seen != before or self._seen == self._loaded:  # still being written, or known
            return
        self._loaded = self._seen
        try:
            for model in models_in(self._repository):
                self.server.load(model, self._loading_s)
            self._tell("the versions of models that changed are loaded")
        except AutolabelError as error:
            if not self.told_to_end:
                self._tell(f"{error}; what was loaded before goes on")

    def _has_dead_models(self) -> bool:
        """Tell whether a process of a model has ended and Triton has not noticed since."""
        found: set[int] = set()
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.server.process.pid).children():
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
        self.server.stop(now=True)
        self._zombies = set()
        if self.told_to_end:
            return
        self.server = self._start()
        if self.told_to_end:  # meanwhile: the signal met the one before
            self.server.kill()
            return
        self.wait_ready()
        if not self.told_to_end:
            self._tell("ready again")
