"""One of several servers: the first in their order that answers, with patience for all of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sam2_core.serving.contract import DESCRIBE, ServedModel, text_in
from sam2_core.serving.transport import (
    Call,
    DeadlineError,
    ModelReplacedError,
    ServerAbsentError,
    ServerError,
    Tensors,
    Transport,
)
from sam2_core.types import AutolabelError

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
        assert self._expected is not None  # noqa: S101 - of whoever was reached
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
                loading = is_loading(str(error))
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
                # It may hang, and would hold up whoever asks: the others come first.
                self._transports.sort(key=lambda one: one is reached)

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
        refusals = [one for one in problems if not isinstance(one, ServerAbsentError)]
        raise (refusals or problems)[0]

    def _ask(self, transport: Transport) -> None:
        """Ask a server what it serves; only the model of this run will do."""
        try:
            told = transport.infer(Call(self.model, DESCRIBE, ["info"], 10.0))
        except ServerError as error:
            starting = any(one in str(error) for one in _STARTING)
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


def is_loading(text: str) -> bool:
    """Tell from a refusal that the model is not there yet, or no more, in the version asked for."""
    return any(one in text for one in _LOADING)
