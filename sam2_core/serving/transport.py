"""Ways to a Triton server: what all of them do, and their errors."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np

from sam2_core.redaction import redact
from sam2_core.serving.contract import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    EXPIRED,
    KEY_VARIABLE,
    TOKEN_VARIABLE,
)
from sam2_core.types import AutolabelError, MachineError

Tensors = dict[str, np.ndarray[Any, Any]]
# Triton's words for a model whose process was killed: it never comes back by itself.
_DEAD = "is not healthy"
SCHEMES = ("grpc", "grpcs", "http", "https")
# numpy's kind and size to Triton's name.
_TYPES = {"u1": "UINT8", "i4": "INT32", "i8": "INT64", "f2": "FP16", "f4": "FP32", "b1": "BOOL"}


class ServerError(AutolabelError):
    """The server has refused a request; it is of no use to send it again."""


class CancelledOnWayError(ServerError):
    """Whoever sent the request has given it up."""


class ExpiredOnServerError(ServerError):
    """What a request refers to is no longer on the server: send it anew."""


class ServerAbsentError(MachineError):
    """The server does not answer, or not yet, or no more; another one, or a later one, may."""


class DeadlineError(ServerError):
    """The answer has not come in time."""


class UntrustedError(ServerError):
    """The server, or what stands before it, and this side do not trust each other."""


class ModelReplacedError(ServerError):
    """The server has another model than the one that a run began with."""


class Cancellation:
    """Gives up requests on their way; `cancel` may be called on any thread, once or more.

    Attributes:
        cancelled: nothing more is sent.
        late: because no answer has come in time.

    """

    def __init__(self) -> None:
        self.cancelled = self.late = False
        self._cancel_sent: Callable[[], object] = lambda: None

    def sent(self, cancel: Callable[[], object]) -> None:
        """Note how to cancel the request that has just been sent."""
        self._cancel_sent = cancel
        if self.cancelled:
            cancel()

    def cancel(self) -> None:
        """Cancel what is on its way, here and on the server; nothing more is sent."""
        self.cancelled = True
        self._cancel_sent()


@dataclass(frozen=True, eq=False)
class Call:
    """A request to a model.

    Attributes:
        model: its name on the server.
        inputs: tensors by name; texts and files are bytes, uint8.
        outputs: which to send.
        deadline_s: how long to wait; then the server drops it, too, if it still waits there.
        version: of the model; the latest that the server has loaded where it is empty.
        cancellation: gives it up; gRPC tells the server, too.

    """

    model: str
    inputs: Mapping[str, np.ndarray[Any, Any]]
    outputs: Sequence[str]
    deadline_s: float = 60.0
    version: str = ""
    cancellation: Cancellation = field(default_factory=Cancellation)


@dataclass(frozen=True)
class Access:
    """How to reach servers: TLS, headers. What is left out is the environment's, if it has it.

    Attributes:
        token: sent as `Authorization: Bearer ...`; else `AUTOLABEL_TRITON_TOKEN`.
        headers: more of them.
        root_certificates: PEM file with the certificates to trust, of servers behind grpcs and
            https; else `AUTOLABEL_TRITON_CA`, else those that this machine trusts.
        client_certificate, client_key: PEM files, where the server asks for them; else
            `AUTOLABEL_TRITON_CERTIFICATE` and `AUTOLABEL_TRITON_KEY`.

    """

    token: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    root_certificates: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None

    def all_headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        token = self.token or os.environ.get(TOKEN_VARIABLE, "")
        signed = {"authorization": f"Bearer {token}"} if token else {}
        return signed | {name.lower(): value for name, value in self.headers.items()}

    def tls_files(self) -> tuple[Path | None, Path | None, Path | None]:
        """Return PEM files: certificates to trust, a certificate to show, and its key.

        Raises:
            AutolabelError: one is not there, or a certificate has no key.

        """
        roots = _pem(self.root_certificates, CA_VARIABLE)
        certificate = _pem(self.client_certificate, CERTIFICATE_VARIABLE)
        key = _pem(self.client_key, KEY_VARIABLE)
        if (certificate is None) != (key is None):
            raise AutolabelError(
                "a client's certificate and its key go together: "
                f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE}"
            )
        return roots, certificate, key


def _pem(given: Path | None, variable: str) -> Path | None:
    named = os.environ.get(variable, "")
    if not given and not named:
        return None
    path = given or Path(named)
    try:
        if b"-----BEGIN " not in path.read_bytes():
            raise AutolabelError(f"{path} is no PEM file: it has no line -----BEGIN ...-----")
    except OSError as error:
        raise AutolabelError(f"{path} cannot be read for TLS: {error.strerror}") from error
    return path


class Transport(ABC):
    """A connection to one server; any thread may use it.

    Args:
        url: address of the server, without secrets.

    """

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def infer(self, call: Call) -> Tensors:
        """Send a request and wait for its answer.

        Raises:
            ServerAbsentError: there is no server, or it has gone while it worked.
            ExpiredOnServerError, DeadlineError, ServerError: as they say.

        """

    def close(self) -> None:
        """Let go of connections."""
        return


def connect(url: str, access: Access | None = None) -> Transport:
    """Return a connection to a server; it is made with the first request.

    Args:
        url: grpc://HOST:PORT, grpcs://, http://, https://, or unix:PATH of a server's own socket.
        access: TLS and headers.

    """
    from sam2_core.serving.protocols import GrpcTransport, HttpTransport

    unix = url.startswith("unix:")
    kind = HttpTransport if unix or split_url(url).scheme.startswith("http") else GrpcTransport
    return kind(url, access or Access())


def split_url(url: str) -> SplitResult:
    """Return the parts of a server's address.

    Raises:
        AutolabelError: it is none, or has a password in it.

    """
    parts = urlsplit(url)
    try:
        # A proxy of HTTP may be at the usual port.
        has_port = bool(parts.port) or (parts.port is None and parts.scheme in {"http", "https"})
    except ValueError:
        has_port = False
    if parts.scheme not in SCHEMES or not parts.hostname or not has_port:
        raise AutolabelError(
            f"{redact(url)!r} is no address of a Triton server: such as grpc://host:8001 or "
            "http://host:8000, with a port from 1 to 65535"
        )
    if parts.username or parts.password or parts.query:
        raise AutolabelError(
            f"{redact(url)}: no password in an address, give a token in {TOKEN_VARIABLE}"
        )
    return parts


def triton_type(array: np.ndarray[Any, Any]) -> str:
    """Return Triton's name of an array's type."""
    return _TYPES[array.dtype.str[1:]]


def refused(text: str, url: str) -> ServerError | ServerAbsentError:
    """Return the error for a server's refusal."""
    if _DEAD in text:
        return absent(url, f"a process of its models has died ({text.strip()})")
    # Triton puts words of its own around what a model says.
    _, expired, rest = text.partition(EXPIRED)
    if expired:
        return ExpiredOnServerError(rest.strip())
    return ServerError(f"the Triton server {url} refused the request: {text.strip()}")


def late(url: str, call: Call) -> DeadlineError:
    """Return the error for an answer that has not come in time."""
    return DeadlineError(f"the Triton server {url} did not answer within {call.deadline_s:g} s")


def unauthorized(text: str, url: str) -> UntrustedError:
    """Return the error for a token that is missing or wrong."""
    return UntrustedError(
        f"the Triton server {url}, or a proxy before it, wants another token than this side has "
        f"(in {TOKEN_VARIABLE}): {text.strip()}"
    )


def untrusted(url: str, why: str) -> UntrustedError:
    """Return the error for a TLS connection that one of both sides does not want."""
    return UntrustedError(
        f"no TLS connection with the Triton server {url}: {why.strip()}. The certificate that it "
        f"shows must name this host and be signed by one in {CA_VARIABLE} (without it, by one that "
        f"this machine trusts); a server that asks for one gets {CERTIFICATE_VARIABLE}"
    )


def absent(url: str, why: str) -> ServerAbsentError:
    """Return the error for a server that is not there."""
    return ServerAbsentError(f"the Triton server {url} does not answer: {why.strip()}")
