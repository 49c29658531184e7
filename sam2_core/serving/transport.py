"""A connection to a Triton server over gRPC, by NVIDIA's client, and its errors.

Of several servers the first in their order that answers is taken, with patience for all of them.
"""

import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np

from sam2_core.machine import of_extra
from sam2_core.redaction import redact
from sam2_core.serving.contract import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    DESCRIBE,
    EXPIRED,
    KEY_VARIABLE,
    TOKEN_VARIABLE,
    ServedModel,
    text_in,
)
from sam2_core.types import AutolabelError, ServerAbsentError

Tensors = dict[str, np.ndarray[Any, Any]]
# Triton's words for a model whose process was killed: it never comes back by itself.
_DEAD = "is not healthy"
# What gRPC says of a handshake that failed; a server that has died fails none.
_TLS_FAILURE = re.compile(r"certificate|SSL_ERROR_SSL|Hostname Verification|handshake", re.I)


class ServerError(AutolabelError):
    """The server has refused a request; it is of no use to send it again."""


class CancelledOnWayError(ServerError):
    """Whoever sent the request has given it up."""


class ExpiredOnServerError(ServerError):
    """What a request refers to is no longer on the server: send it anew."""


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


def _tls_files() -> tuple[str | None, str | None, str | None]:
    """Return the environment's PEM files: certificates to trust, one to show, and its key.

    Raises:
        AutolabelError: one cannot be used, or a certificate has no key.

    """
    roots, certificate, key = (
        os.environ.get(name) or None for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE)
    )
    if (certificate is None) != (key is None):
        raise AutolabelError(
            "a client's certificate and its key go together: "
            f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE}"
        )
    try:
        context = ssl.create_default_context(cafile=roots)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        names = ", ".join(filter(None, (roots, certificate, key)))
        raise AutolabelError(f"the files of TLS ({names}) cannot be used: {error}") from error
    return roots, certificate, key


class Transport:
    """A connection to one server, made with the first request; any thread may use it.

    Its token (`Authorization: Bearer ...`) and the files of TLS are the environment's.

    Args:
        url: grpc://HOST:PORT or grpcs://HOST:PORT, without secrets.

    Raises:
        AutolabelError: it is no such address, the client is not installed, or the files of TLS
            cannot be used.

    """

    def __init__(self, url: str) -> None:
        parts, token = _split_url(url), os.environ.get(TOKEN_VARIABLE, "")
        self._grpc = of_extra("tritonclient.grpc", "speaking with a Triton server", "triton")
        self.url = url
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        secure = parts.scheme == "grpcs"
        roots, certificate, key = _tls_files() if secure else (None, None, None)
        self._client = self._grpc.InferenceServerClient(
            parts.netloc, ssl=secure, root_certificates=roots, private_key=key,
            certificate_chain=certificate,
        )  # fmt: skip

    def infer(self, call: Call) -> Tensors:
        """Send a request and wait for its answer.

        Raises:
            ServerAbsentError: there is no server, or it has gone while it worked.
            ExpiredOnServerError, DeadlineError, ServerError: as they say.

        """
        from tritonclient.utils import np_to_triton_dtype

        inputs = []
        for name, array in call.inputs.items():
            inputs.append(
                self._grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            )
            inputs[-1].set_data_from_numpy(array)
        answered: Future[tuple[Any, Any]] = Future()
        sent = self._client.async_infer(
            call.model, inputs, lambda result, error: answered.set_result((result, error)),
            model_version=call.version, headers=self._headers,
            outputs=[self._grpc.InferRequestedOutput(name) for name in call.outputs],
            timeout=int(call.deadline_s * 1e6), client_timeout=call.deadline_s,
        )  # fmt: skip
        call.cancellation.sent(sent.cancel)
        answer, error = answered.result()
        if error is not None:
            raise self._error_of(error, call) from error
        return {name: answer.as_numpy(name) for name in call.outputs}

    def _error_of(self, error: Any, call: Call) -> Exception:
        """Return our error for one of NVIDIA's client."""
        status, text = str(error.status() or ""), str(error.message() or error)
        if call.cancellation.cancelled and not call.cancellation.late:
            return CancelledOnWayError(text)
        late = call.cancellation.late or "DEADLINE_EXCEEDED" in status
        if late or "Request timeout expired" in text:
            return DeadlineError(
                f"the Triton server {self.url} did not answer within {call.deadline_s:g} s"
            )
        if "UNAUTHENTICATED" in status or "PERMISSION_DENIED" in status:
            return UntrustedError(
                f"the Triton server {self.url}, or a proxy before it, wants another token than "
                f"this side has (in {TOKEN_VARIABLE}): {text.strip()}"
            )
        if "UNAVAILABLE" in status and _TLS_FAILURE.search(text):
            return UntrustedError(
                f"no TLS connection with the Triton server {self.url}: {text.strip()}. The "
                "certificate that it shows must name this host and be signed by one in "
                f"{CA_VARIABLE} (without it, by one that this machine trusts); a server that asks "
                f"for one gets {CERTIFICATE_VARIABLE}"
            )
        if "UNAVAILABLE" in status:
            # TLS 1.3 tells a client no more than this when its certificate is not wanted.
            closed = self.url.startswith("grpcs") and "Socket closed" in text
            hint = f" (does it want a certificate in {CERTIFICATE_VARIABLE}?)" if closed else ""
            return absent(self.url, text + hint)
        return refused(text, self.url)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


def _split_url(url: str) -> SplitResult:
    """Return the parts of a server's address.

    Raises:
        AutolabelError: it is none, or has a password in it.

    """
    parts = urlsplit(url)
    try:
        has_port = bool(parts.port)
    except ValueError:
        has_port = False
    if parts.scheme not in {"grpc", "grpcs"} or not parts.hostname or not has_port:
        raise AutolabelError(
            f"{redact(url)!r} is no address of a Triton server: such as grpc://host:8001, with a "
            "port from 1 to 65535"
        )
    if parts.username or parts.password or parts.query:
        raise AutolabelError(
            f"{redact(url)}: no password in an address, give a token in {TOKEN_VARIABLE}"
        )
    return parts


def refused(text: str, url: str) -> ServerError | ServerAbsentError:
    """Return the error for a server's refusal."""
    if _DEAD in text:
        return absent(url, f"a process of its models has died ({text.strip()})")
    # Triton puts words of its own around what a model says.
    _, expired, rest = text.partition(EXPIRED)
    if expired:
        return ExpiredOnServerError(rest.strip())
    return ServerError(f"the Triton server {url} refused the request: {text.strip()}")


def absent(url: str, why: str) -> ServerAbsentError:
    """Return the error for a server that is not there."""
    return ServerAbsentError(f"the Triton server {url} does not answer: {why.strip()}")


logger = logging.getLogger(__name__)
# Pauses between rounds over all servers.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# Triton's words for a model, or a version of it, that is loading, or not there.
_STARTING = ("not ready", "not at ready state")
_LOADING = (*_STARTING, "unknown model", "is not found")


class Servers:
    """Servers of one model; all must serve the very same. Any thread may ask.

    Args:
        transports: connections, in the order in which they are tried.
        model: what it is served as.
        patience_s: how long a request goes on while no server answers.
        first_patience_s: the same before one has answered at all.
        sleep: waits; for tests.

    """

    def __init__(
        self,
        transports: Sequence[Transport],
        model: str,
        *,
        patience_s: float = 60.0,
        first_patience_s: float = 5.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.model = model
        self._transports = list(transports)
        self._patience_s, self._first_patience_s, self._sleep = patience_s, first_patience_s, sleep
        self._lock = threading.Lock()
        self._current: Transport | None = None
        self._expected: ServedModel | None = None

    @property
    def served(self) -> ServedModel:
        """What the servers run; the first one is asked when this is first needed.

        Raises:
            AutolabelError: no server is there, or none serves the model.

        """
        if self._expected is None:
            self._reach(self._first_patience_s)
        assert self._expected is not None  # noqa: S101 - `_reach` sets it
        return self._expected

    def infer(self, call: Call) -> Tensors:
        """Send a request that may be sent twice; another server gets it where one does not answer.

        Raises:
            ServerAbsentError: none has answered for as long as the patience lasts.
            ServerError: it was refused.

        """
        _ = self.served
        until, late = time.monotonic() + self._patience_s, 0
        while True:
            reached = self._reach(until - time.monotonic())
            try:
                return reached.infer(call)
            except DeadlineError as error:
                self._give_up(reached, error)  # it hangs, or its machine is gone: another may not
                late += 1
                if late >= len(self._transports) or call.cancellation.cancelled:
                    raise
            except (ServerError, ServerAbsentError) as error:
                # The model is not there yet, or no more, in the version asked for.
                loading = any(phrase in str(error) for phrase in _LOADING)
                if isinstance(error, ServerError) and not loading:
                    raise
                self._give_up(reached, error)
                if time.monotonic() >= until:
                    raise
                if loading:
                    self._sleep(_FIRST_PAUSE_S)  # the server is there, and refuses at once

    def _give_up(self, reached: Transport, error: AutolabelError) -> None:
        logger.warning("%s", error)
        with self._lock:
            if self._current is reached:
                self._current = None
                # It may hang and hold up the next request: the others come first.
                self._transports.sort(key=lambda transport: transport is reached)

    def _reach(self, patience_s: float) -> Transport:
        """Return the server in use, or the first that answers now."""
        until, pause = time.monotonic() + patience_s, _FIRST_PAUSE_S
        while True:
            with self._lock:
                if self._current is not None:
                    return self._current
                try:
                    self._current = self._first()
                    return self._current
                except ServerAbsentError as error:
                    if time.monotonic() + pause > until:
                        raise ServerAbsentError(
                            f"{error} (tried for {patience_s:.0f} s; is `autolabel serve` running?)"
                        ) from error
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _first(self) -> Transport:
        problems: list[AutolabelError] = []
        for transport in self._transports:
            try:
                self._ask(transport)
                return transport
            except (ServerAbsentError, ServerError) as error:
                problems.append(error)
        refusals = [problem for problem in problems if not isinstance(problem, ServerAbsentError)]
        raise (refusals or problems)[0]

    def _ask(self, transport: Transport) -> None:
        """Ask a server what it serves; only the model of this run will do."""
        try:
            told = transport.infer(Call(self.model, DESCRIBE, ["info"], 10.0))
        except ServerError as error:
            starting = any(phrase in str(error) for phrase in _STARTING)
            if self._expected is not None or starting:  # it has just started again
                raise ServerAbsentError(str(error)) from error
            raise
        served = ServedModel.from_json(text_in(told["info"]))
        if self._expected is not None and served != replace(self._expected, device=served.device):
            raise ModelReplacedError(
                f"the Triton server {transport.url} serves another model than the one that this "
                f"run began with ({served.stamp.name}, {served.stamp.backend}): run again, and the "
                "labels get their own key"
            )
        self._expected = self._expected or served

    def close(self) -> None:
        """Let go of all connections."""
        for transport in self._transports:
            transport.close()
