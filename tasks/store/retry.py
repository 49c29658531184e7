"""Trying again where it helps: timeouts, cut connections, busy servers; never 403 or 404."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential_jitter,
)

from sam2_core.machine_errors import causes
from tasks.errors import error_text

ATTEMPTS = 5
FIRST_DELAY_S = 0.2
BEGUN_WITHIN_S = 45.0  # of a further attempt: on a server that hangs each takes its 30 s
# Of flows without a person who waits, such as nights: a storage may be away for as long.
PATIENCE_S = 1800.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0

_TRANSIENT_STATUS = {408, 425, 429}
# By name, so that nothing imports botocore or aiohttp to label local files.
_TRANSIENT_NAMES = {
    "ClientConnectionError", "ClientPayloadError", "ServerDisconnectedError",  # aiohttp
    "HTTPClientError", "ConnectionError", "IncompleteReadError", "ResponseParserError",  # botocore
    "IncompleteRead",  # urllib3
}  # fmt: skip

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class CutBodyError(ConnectionError):
    """Fewer bytes arrived than were announced."""


def http_status(error: BaseException) -> int | None:
    """Status that a server answered with, wherever in the chain of causes it is, or None."""
    for cause in causes(error):
        status = getattr(cause, "status", None)  # aiohttp
        if status is None:
            response = getattr(cause, "response", None)  # botocore
            if isinstance(response, dict):
                status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int):
            return status
    return None


def is_transient(error: BaseException) -> bool:
    """Whether the same request may well succeed in a moment."""
    status = http_status(error)
    if status is not None and status >= 400:
        return status >= 500 or status in _TRANSIENT_STATUS
    for cause in causes(error):
        if isinstance(cause, (TimeoutError, asyncio.TimeoutError, ConnectionError)):
            return True
        if {base.__name__ for base in type(cause).__mro__} & _TRANSIENT_NAMES:
            return True
    return False


def with_retries(call: Callable[[], Result], what: str) -> Result:
    """Call until it succeeds, with growing, random pauses between transient errors.

    Args:
        call: does the work; must be safe to repeat.
        what: what is tried, for the log; without secrets.

    Raises:
        Whatever the call raised last.

    """
    return _retried(
        call,
        stop_after_attempt(ATTEMPTS) | stop_after_delay(BEGUN_WITHIN_S),
        wait_exponential_jitter(initial=FIRST_DELAY_S, jitter=FIRST_DELAY_S),
        # The error's kind only: its text may hold a signed address.
        lambda error, pause_s: log.warning(
            "%s: %s, trying again in %.1f s", what, type(error).__name__, pause_s
        ),
    )


def until_answered(
    call: Callable[[], Result], what: str, tell: Callable[[str], object], patience_s: float
) -> Result:
    """Call again, for long, while storage does not answer: each call has had its retries.

    Args:
        call: does the work; must be safe to repeat.
        what: what is tried, without secrets.
        tell: called with the reason and the pause before each further try.
        patience_s: from when on an error is final.

    Raises:
        Whatever the call raised last; at once what no pause mends.

    """
    return _retried(
        call,
        stop_after_delay(patience_s),
        wait_exponential_jitter(FIRST_PAUSE_S, LONGEST_PAUSE_S, jitter=FIRST_PAUSE_S),
        lambda error, pause_s: tell(
            f"{what}: {error_text(error)}; trying again in {pause_s:.0f} s"
        ),
    )


def _retried(
    call: Callable[[], Result], stop: Any, wait: Any, tell: Callable[[BaseException, float], object]
) -> Result:
    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        tell(error or RuntimeError(), state.upcoming_sleep)

    retry = retry_if_exception(is_transient)
    return Retrying(retry=retry, stop=stop, wait=wait, before_sleep=before_sleep, reraise=True)(
        call
    )
