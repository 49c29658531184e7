"""Triton's protocols: HTTP (KServe v2, binary extension) and gRPC (NVIDIA's client)."""

from __future__ import annotations

import json
import re
import ssl
from concurrent.futures import Future
from typing import Any

import httpx
import numpy as np

from sam2_core.machine import how_to_install
from sam2_core.machine_errors import causes
from sam2_core.serving.contract import CERTIFICATE_VARIABLE
from sam2_core.serving.transport import (
    Access,
    Call,
    CancelledOnWayError,
    Tensors,
    Transport,
    absent,
    late,
    refused,
    split_url,
    triton_type,
    unauthorized,
    untrusted,
)
from sam2_core.types import AutolabelError

# What gRPC says of a handshake that failed; a server that has died fails none.
_TLS_FAILURE = re.compile(r"certificate|SSL_ERROR_SSL|Hostname Verification|handshake", re.I)


class GrpcTransport(Transport):
    """A connection over gRPC, by NVIDIA's client.

    Args:
        url: grpc://HOST:PORT or grpcs://HOST:PORT.
        access: TLS and headers.

    Raises:
        AutolabelError: the client is not installed, or the files of TLS are none.

    """

    def __init__(self, url: str, access: Access) -> None:
        try:
            import tritonclient.grpc
        except ImportError as error:
            raise AutolabelError(
                "speaking gRPC with a Triton server needs its client: "
                f"{how_to_install('triton', 'triton')} (or use an http:// address)"
            ) from error
        self._grpc: Any = tritonclient.grpc
        super().__init__(url)
        self._headers = access.all_headers()
        parts = split_url(url)
        secure = parts.scheme == "grpcs"
        files = access.tls_files() if secure else (None, None, None)
        roots, certificate, key = (str(path) if path else None for path in files)
        self._client = self._grpc.InferenceServerClient(
            parts.netloc, ssl=secure, root_certificates=roots, private_key=key,
            certificate_chain=certificate,
        )  # fmt: skip

    def infer(self, call: Call) -> Tensors:
        """Send a request and wait for its answer."""
        inputs = []
        for name, array in call.inputs.items():
            inputs.append(self._grpc.InferInput(name, list(array.shape), triton_type(array)))
            inputs[-1].set_data_from_numpy(array)
        answered: Future[Any] = Future()

        def take(result: Any, error: Any) -> None:
            if error is None:
                answered.set_result(result)
            else:
                answered.set_exception(error)

        sent = self._client.async_infer(
            call.model, inputs, take, model_version=call.version, headers=self._headers,
            outputs=[self._grpc.InferRequestedOutput(name) for name in call.outputs],
            timeout=int(call.deadline_s * 1e6), client_timeout=call.deadline_s,
        )  # fmt: skip
        call.cancellation.sent(sent.cancel)
        try:
            answer = answered.result()
        except self._grpc.InferenceServerException as error:
            raise self._error_of(error, call) from error
        return {name: answer.as_numpy(name) for name in call.outputs}

    def _error_of(self, error: Any, call: Call) -> Exception:
        """Return our error for one of NVIDIA's client."""
        status, text = str(error.status() or ""), str(error.message() or error)
        if call.cancellation.cancelled and not call.cancellation.late:
            return CancelledOnWayError(text)
        if (
            call.cancellation.late
            or "DEADLINE_EXCEEDED" in status
            or "Request timeout expired" in text
        ):
            return late(self.url, call)
        if "UNAUTHENTICATED" in status or "PERMISSION_DENIED" in status:
            return unauthorized(text, self.url)
        if "UNAVAILABLE" in status and _TLS_FAILURE.search(text):
            return untrusted(self.url, text)
        if "UNAVAILABLE" in status:
            # TLS 1.3 tells a client no more than this when its certificate is not wanted.
            closed = self.url.startswith("grpcs") and "Socket closed" in text
            hint = f" (does it want a certificate in {CERTIFICATE_VARIABLE}?)" if closed else ""
            return absent(self.url, text + hint)
        return refused(text, self.url)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


_LENGTH = "Inference-Header-Content-Length"
_KINDS = {
    "UINT8": "u1", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "BOOL": "?",
}  # fmt: skip
_ABSENT = {502, 503, 504}
_UNAUTHORIZED = {401, 403}


def tls_context(access: Access) -> ssl.SSLContext | bool:
    """Return what certificates to trust and to show; True for the usual ones."""
    roots, certificate, key = access.tls_files()
    if roots is None and certificate is None:
        return True
    try:
        context = ssl.create_default_context(cafile=str(roots) if roots else None)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise AutolabelError(
            f"the files of TLS ({roots or certificate}) cannot be used: {error}"
        ) from error
    return context


class HttpTransport(Transport):
    """A connection over HTTP or HTTPS.

    Args:
        url: http://HOST:PORT or https://HOST:PORT, with the path of a proxy, or unix:PATH for a
            server's own socket.
        access: TLS and headers.

    """

    def __init__(self, url: str, access: Access) -> None:
        _, unix, path = url.rpartition("unix:")
        super().__init__("http://triton" if unix else url.rstrip("/"))
        self._client = httpx.Client(
            headers={"accept-encoding": "identity"} | access.all_headers(),
            transport=httpx.HTTPTransport(
                verify=tls_context(access), trust_env=False, uds=path if unix else None
            ),
        )

    def infer(self, call: Call) -> Tensors:
        """Send a request and wait for its answer."""
        header, body = encoded(call)
        version = f"/versions/{call.version}" if call.version else ""
        try:
            answer = self._client.post(
                f"{self.url}/v2/models/{call.model}{version}/infer",
                content=header + body,
                headers={_LENGTH: str(len(header)), "Content-Type": "application/octet-stream"},
                timeout=httpx.Timeout(call.deadline_s, connect=min(call.deadline_s, 5.0)),
            )
        except httpx.ConnectTimeout as error:
            raise absent(self.url, str(error) or type(error).__name__) from error
        except httpx.TimeoutException as error:
            raise late(self.url, call) from error
        except httpx.TransportError as error:  # not there, or it died while it answered
            if any(isinstance(one, ssl.SSLError) for one in causes(error, contexts=True)):
                raise untrusted(self.url, str(error)) from error
            raise absent(self.url, str(error) or type(error).__name__) from error
        if answer.status_code in _ABSENT:
            raise absent(self.url, _told(answer))
        if answer.status_code in _UNAUTHORIZED:
            raise unauthorized(_told(answer), self.url)
        if answer.status_code != httpx.codes.OK:
            raise refused(_told(answer), self.url)
        length = int(answer.headers.get(_LENGTH, len(answer.content)))
        return decoded(answer.content, length)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


def _told(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = " ".join(answer.text.split())[:80]
        return f"{answer.status_code} {text} (these are no words of a Triton server)"


def encoded(call: Call) -> tuple[bytes, bytes]:
    """Return a request's JSON and the tensors behind it."""
    inputs, bodies = [], []
    for name, array in call.inputs.items():
        body = np.ascontiguousarray(array).tobytes()
        bodies.append(body)
        inputs.append({
            "name": name, "shape": list(array.shape), "datatype": triton_type(array),
            "parameters": {"binary_data_size": len(body)},
        })  # fmt: skip
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in call.outputs]
    header: dict[str, Any] = {
        "inputs": inputs, "outputs": outputs,
        "parameters": {"timeout": int(call.deadline_s * 1e6)},
    }  # fmt: skip
    return json.dumps(header).encode(), b"".join(bodies)


def decoded(content: bytes, length: int) -> Tensors:
    """Return the tensors of an answer."""
    found, start = {}, length
    for output in json.loads(content[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        body, start = content[start : start + size], start + size
        array = np.frombuffer(body, _KINDS[output["datatype"]])
        found[output["name"]] = array.reshape(output["shape"])
    return found
