"""A Triton server as a child process: started, waited for, stopped; nothing of it stays behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx

from sam2_core.serving.installed_server import InstalledServer
from sam2_core.serving.python_model import ModelSettings
from sam2_core.serving.server_memory import new_prefix, remove_shared_memory
from sam2_core.types import AutolabelError

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
    """Where a server listens and what it may do.

    Attributes:
        host: address to listen on. HTTP has no TLS of its own and stays on 127.0.0.1 where gRPC
            has: it would be a way around.
        http_port, grpc_port, metrics_port: 0 takes a free one.
        tls_certificate, tls_key: files; gRPC speaks TLS then.
        tls_clients: file with the certificates of clients that may connect; any when None.
        verbose: log every request.

    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_clients: Path | None = None
    verbose: bool = False

    @property
    def http_host(self) -> str:
        """Address on which HTTP listens."""
        return "127.0.0.1" if self.tls_certificate else self.host

    def with_free_ports(self) -> ServerOptions:
        """Return options with a port for each 0.

        Raises:
            AutolabelError: one is taken. Triton would say so when its models are loaded.

        """
        with contextlib.ExitStack() as stack:
            ports = {
                name: _free_port(stack, self.host, getattr(self, name), name)
                for name in ("http_port", "grpc_port", "metrics_port")
            }
        return ServerOptions(**self.__dict__ | ports)


def _free_port(stack: contextlib.ExitStack, host: str, port: int, name: str) -> int:
    one = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port))
    except OSError as error:
        raise AutolabelError(
            f"cannot listen on {host}:{port} (--{name.replace('_', '-')}): {error.strerror}"
        ) from error
    return int(one.getsockname()[1])


@dataclass(eq=False)
class RunningServer:
    """A server that runs as a child of this process.

    Attributes:
        options: with the ports that it listens on.
        process: tritonserver.
        prefix: of the names of its shared memory.

    """

    options: ServerOptions
    process: subprocess.Popen[bytes]
    prefix: str
    log: Path | None = field(default=None)

    @property
    def http_url(self) -> str:
        """Address of the HTTP protocol."""
        return f"http://{_reached(self.options.http_host)}:{self.options.http_port}"

    @property
    def grpc_url(self) -> str:
        """Address of the gRPC protocol."""
        scheme = "grpcs" if self.options.tls_certificate else "grpc"
        return f"{scheme}://{_reached(self.options.host)}:{self.options.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """Address of the metrics."""
        return f"http://{_reached(self.options.host)}:{self.options.metrics_port}/metrics"

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
                if httpx.get(f"{self.http_url}/v2/health/ready", trust_env=False).is_success:
                    return
            time.sleep(_POLL_S)
        raise AutolabelError(
            f"the Triton server was not ready within {patience_s:.0f} s{self._not_loaded()}"
            + self._says()
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

    def _not_loaded(self) -> str:
        """Return which models are not ready, and why, as far as the server says."""
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            index = httpx.post(f"{self.http_url}/v2/repository/index", trust_env=False).json()
            waiting = [
                " ".join(filter(None, (one["name"], one.get("state"), one.get("reason"))))
                for one in index
                if one.get("state") != "READY"
            ]
            return f": {', '.join(waiting)}" if waiting else ""
        return ": it does not answer"

    def stop(self, *, now: bool = False) -> None:
        """Stop it, with its models' processes, and remove its shared memory."""
        if self.process.poll() is None and not now:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        remove_shared_memory(self.prefix)

    def kill(self) -> None:
        """End it and its models' processes without waiting for anything."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own: they are in it


def _reached(host: str) -> str:
    everywhere = host in {"0.0.0.0", "::"}  # noqa: S104 - as asked for
    return "127.0.0.1" if everywhere else host


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
    prefix: str = "",
    log: Path | None = None,
) -> RunningServer:
    """Start a server; it ends with this process.

    Args:
        installed: which one.
        repository: model repository.
        models: to load first; more can be loaded and unloaded later.
        options: where it listens.
        prefix: of the names of its shared memory.
        log: file for its output; this process's stderr when None.

    """
    if shutil.which("bash", path=installed.environment(os.environ)["PATH"]) is None:
        raise AutolabelError("Triton starts its models through bash, which is not on the PATH")
    options, prefix = options.with_free_ports(), prefix or new_prefix()
    command = _command(installed, repository, models, options, prefix)
    with contextlib.ExitStack() as stack:
        output: IO[bytes] | None = stack.enter_context(log.open("ab")) if log else None
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output or 2, stderr=output,
            env=installed.environment(os.environ), start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - one call of the C library
        )  # fmt: skip
    return RunningServer(options, process, prefix, log)


def _end_with_parent() -> None:
    _PRCTL(_PDEATHSIG, signal.SIGTERM)


def _command(
    installed: InstalledServer,
    repository: Path,
    models: Sequence[str],
    options: ServerOptions,
    prefix: str,
) -> list[str]:
    def arguments() -> Iterator[str]:
        yield f"--model-repository={repository}"
        yield f"--backend-directory={installed.backends}"
        # Explicit: models are loaded and unloaded by request, and a folder that is not finished
        # is not taken for one.
        yield "--model-control-mode=explicit"
        yield from (f"--load-model={model}" for model in models)
        yield f"--backend-config=python,shm-region-prefix-name={prefix}-"
        for protocol in ("http", "grpc", "metrics"):
            host = options.http_host if protocol == "http" else options.host
            yield f"--{protocol}-address={host}"
            yield f"--{protocol}-port={getattr(options, f'{protocol}_port')}"
        yield "--metrics-config=summary_latencies=true"
        yield "--exit-timeout-secs=10"
        yield f"--log-verbose={int(options.verbose)}"
        if options.tls_certificate:
            yield "--grpc-use-ssl=true"
            yield f"--grpc-server-cert={options.tls_certificate}"
            yield f"--grpc-server-key={options.tls_key}"
        if options.tls_clients:
            yield "--grpc-use-ssl-mutual=true"
            yield f"--grpc-root-cert={options.tls_clients}"

    return [str(installed.binary), *arguments()]
