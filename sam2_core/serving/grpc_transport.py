"""Triton's gRPC protocol, through NVIDIA's client; images through shared memory on one host."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from sam2_core.installing import how_to_install
from sam2_core.serving.contract import CERTIFICATE_VARIABLE
from sam2_core.serving.server_memory import SHARED_MEMORY
from sam2_core.serving.transport import (
    Access,
    Call,
    DeadlineError,
    Tensors,
    TlsFiles,
    Transport,
    absent,
    refused,
    triton_type,
    unauthorized,
    untrusted,
)
from sam2_core.types import AutolabelError

# Tensors of at least so many bytes go through shared memory, where it is used.
_LEAST_SHARED = 1 << 16
_SECOND_US = 1_000_000
# What gRPC says of a handshake that failed; a server that has died fails none.
_TLS_FAILURE = re.compile(r"certificate|SSL_ERROR_SSL|Hostname Verification|handshake", re.I)


def need_client() -> Any:
    """Return NVIDIA's client; `AutolabelError` where it is not installed."""
    try:
        import tritonclient.grpc
    except ImportError as error:
        raise AutolabelError(
            "speaking gRPC with a Triton server needs its client: "
            f"{how_to_install('triton', 'triton')} (or use an http:// address)"
        ) from error
    return tritonclient.grpc


def channel_options(access: Access, *, secure: bool) -> dict[str, Any]:
    """Return NVIDIA's client's arguments for TLS."""
    files = access.tls_files() if secure else TlsFiles(None, None, None)
    root, key, chain = (
        str(path) if path else None for path in (files.roots, files.key, files.certificate)
    )
    return {
        "ssl": secure,
        "root_certificates": root,
        "private_key": key,
        "certificate_chain": chain,
    }


def request_of(client: Any, call: Call, skip: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return a request's arguments as NVIDIA's client takes them, inputs in `skip` without data."""
    inputs = []
    for name, array in call.inputs.items():
        given = client.InferInput(name, list(array.shape), triton_type(array))
        if name not in skip:
            given.set_data_from_numpy(array)
        inputs.append(given)
    return {
        "model_name": call.model, "model_version": call.version, "inputs": inputs,
        "outputs": [client.InferRequestedOutput(name) for name in call.outputs],
        "request_id": call.request_id, "timeout": int(call.deadline_s * _SECOND_US),
        "client_timeout": call.deadline_s,
    }  # fmt: skip


def error_of(error: Any, call: Call, url: str) -> Exception:
    """Return our error for one of NVIDIA's client."""
    status, text = str(error.status() or ""), str(error.message() or error)
    if "DEADLINE_EXCEEDED" in status or "Request timeout expired" in text:
        return DeadlineError(f"the Triton server {url} did not answer within {call.deadline_s:g} s")
    if "UNAUTHENTICATED" in status or "PERMISSION_DENIED" in status:
        return unauthorized(text, url)
    if "UNAVAILABLE" in status and _TLS_FAILURE.search(text):
        return untrusted(url, text)
    if "UNAVAILABLE" in status:
        # TLS 1.3 tells a client no more than this when its certificate is not wanted.
        closed = url.startswith("grpcs") and "Socket closed" in text
        hint = f" (does it want a certificate in {CERTIFICATE_VARIABLE}?)" if closed else ""
        return absent(url, text + hint)
    return refused(text, url)


class GrpcTransport(Transport):
    """A connection over gRPC.

    Args:
        address: HOST:PORT.
        access: TLS and headers.
        secure: whether to use TLS.
        url: what to call the server.
        shared_memory: pass large tensors through this host's memory.

    """

    def __init__(
        self, address: str, access: Access, *, secure: bool, url: str, shared_memory: bool = False
    ) -> None:
        self._grpc = need_client()
        self._url = url
        self._headers = access.all_headers()
        options = channel_options(access, secure=secure)
        self._client = self._grpc.InferenceServerClient(address, **options)
        self._regions = _Regions(self._client) if shared_memory else None

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._url

    def infer(self, call: Call) -> Tensors:
        """Send a request and wait for its answer."""
        from tritonclient.utils import InferenceServerException

        try:
            with contextlib.ExitStack() as stack:
                skip = frozenset(
                    name
                    for name, array in call.inputs.items()
                    if self._regions and array.nbytes >= _LEAST_SHARED
                )
                request = request_of(self._grpc, call, skip)
                for given in request["inputs"]:
                    if self._regions and given.name() in skip:
                        region = stack.enter_context(
                            self._regions.holding(call.inputs[given.name()])
                        )
                        given.set_shared_memory(region, call.inputs[given.name()].nbytes)
                answer = self._client.infer(**request, headers=self._headers)
        except InferenceServerException as error:
            raise error_of(error, call, self._url) from error
        return {name: answer.as_numpy(name) for name in call.outputs}

    def close(self) -> None:
        """Let go of connections and shared memory."""
        if self._regions:
            self._regions.close()
        self._client.close()


class _Regions:
    """Shared memory that the server knows, on loan to one request at a time."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._free: dict[int, list[str]] = {}
        self._maps: dict[str, np.ndarray[Any, Any]] = {}
        self._numbers = itertools.count()
        # Also where nobody closes the client: files of shared memory outlive their process.
        self._remove = weakref.finalize(self, _remove_files, self._maps)

    @contextlib.contextmanager
    def holding(self, array: np.ndarray[Any, Any]) -> Iterator[str]:
        """Lend a region with an array's bytes in it."""
        size = 1 << (array.nbytes - 1).bit_length()
        with self._lock:
            free = self._free.setdefault(size, [])
            name = (
                free.pop() if free else f"autolabel-{os.getpid()}-{id(self)}-{next(self._numbers)}"
            )
        if name not in self._maps:
            path = SHARED_MEMORY / name  # Triton opens it by this name
            path.touch(mode=0o600)
            os.truncate(path, size)
            self._maps[name] = np.memmap(path, np.uint8, "r+")
        # The server forgets regions when it starts again.
        np.copyto(
            self._maps[name][: array.nbytes], np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
        if name not in self._client.get_system_shared_memory_status().regions:
            self._client.register_system_shared_memory(name, f"/{name}", size)
        try:
            yield name
        finally:
            with self._lock:
                self._free[size].append(name)

    def close(self) -> None:
        """Let the server and this host forget the regions."""
        for name in list(self._maps):
            with contextlib.suppress(Exception):
                self._client.unregister_system_shared_memory(name)
        self._remove()


def _remove_files(names: dict[str, np.ndarray[Any, Any]]) -> None:
    for name in names:
        (SHARED_MEMORY / name).unlink(missing_ok=True)
    names.clear()
