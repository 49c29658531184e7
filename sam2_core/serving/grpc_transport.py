"""Triton's gRPC protocol, through NVIDIA's client."""

from __future__ import annotations

import re
from typing import Any

from sam2_core.installing import how_to_install
from sam2_core.serving.contract import CERTIFICATE_VARIABLE
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


def request_of(client: Any, call: Call) -> dict[str, Any]:
    """Return a request's arguments as NVIDIA's client takes them."""
    inputs = []
    for name, array in call.inputs.items():
        given = client.InferInput(name, list(array.shape), triton_type(array))
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

    """

    def __init__(self, address: str, access: Access, *, secure: bool, url: str) -> None:
        self._grpc = need_client()
        self._url = url
        self._headers = access.all_headers()
        options = channel_options(access, secure=secure)
        self._client = self._grpc.InferenceServerClient(address, **options)

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._url

    def infer(self, call: Call) -> Tensors:
        """Send a request and wait for its answer."""
        from tritonclient.utils import InferenceServerException

        try:
            answer = self._client.infer(**request_of(self._grpc, call), headers=self._headers)
        except InferenceServerException as error:
            raise error_of(error, call, self._url) from error
        return {name: answer.as_numpy(name) for name in call.outputs}

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()
