"""Prefect's client, as everything here uses it: what is wrong is said in words."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

from sam2_core.types import AutolabelError

ANSWER_WITHIN_S = 30.0
_PAGE = 200  # the most that Prefect answers at once

Item = TypeVar("Item")


class ServerAwayError(AutolabelError, ConnectionError):
    """Prefect's API does not answer, or not now."""


@contextlib.contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """Yield a client of Prefect's API; say what to do where that is not there.

    Raises:
        ServerAwayError: it does not answer, or not now.
        AutolabelError: it refuses, or has no deployment of ours.

    """
    try:
        with get_client(sync_client=True) as client:
            yield client
    except ObjectNotFound as error:
        raise AutolabelError(
            "Prefect does not have our deployments, or not this work pool: run `autolabel up` on a "
            "workstation, or `prefect deploy --all --prefect-file flows/prefect.yaml`; `prefect "
            "work-pool create` makes a pool of your own"
        ) from error
    except PrefectHTTPStatusError as error:
        status = error.response.status_code
        if status in {401, 403}:
            raise AutolabelError(
                "Prefect's API refused these credentials: set PREFECT_API_AUTH_STRING to what the "
                "server was started with"
            ) from error
        kind = ServerAwayError if status >= 500 else AutolabelError
        told = f"Prefect's API answered {status}: {error.response.text[:500]}"
        raise kind(
            f"{told}; parameters of a deployment that do not fit this version are changed on its "
            "page of Prefect"
            if status == 409
            else told
        ) from error
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise AutolabelError(
                f"the certificate of Prefect's server is refused: {error}. It has to name the host "
                "of PREFECT_API_URL, this machine's clock has to be right, and "
                "PREFECT_API_SSL_CERT_FILE names the certificate of a private CA"
            ) from error
        raise ServerAwayError(
            f"Prefect's API does not answer ({type(error).__name__}): start one with `autolabel "
            "up`, or set PREFECT_API_URL to a running server"
        ) from error


def server_time(client: SyncPrefectClient) -> datetime:
    """Return what the clock of Prefect's server says, in whole seconds.

    It decides what is due, and the clock of this machine may be minutes apart from it.
    """
    return parsedate_to_datetime(client.request("GET", "/health").headers["date"])


@contextlib.contextmanager
def asked_once(within_s: float = ANSWER_WITHIN_S) -> Iterator[None]:
    """Let Prefect's client fail at once, not after a minute of asking again.

    For callers that ask again themselves, and say meanwhile that the server is away.
    """
    once = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: within_s}
    with temporary_settings(once):
        yield


def in_pages(read: Callable[..., list[Item]]) -> Iterator[Item]:
    """Yield all that Prefect has, page by page.

    Args:
        read: a method of its client that takes `limit` and `offset`.

    """
    for offset in itertools.count(0, _PAGE):
        page = read(limit=_PAGE, offset=offset)
        yield from page
        if len(page) < _PAGE:
            return
