"""One submission at a time of a run to a storage, so that each sees what those before it made.

Who submits reads what is under way and adds what is not; two at once would both read that nothing
is. A turn is a variable of Prefect's: its name is unique in the database, and it is given up by
its id, which no later turn has.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from flows.server.client import asked_once, connected
from flows.server.lost_runs import SILENT_S
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

LOOK_EVERY_S = 1.0
SIGN_EVERY_S = 10.0

log = logging.getLogger(__name__)


class Turn:
    """A submission that has no other of the same run to the same storage beside it."""

    def __init__(self, client: SyncPrefectClient, variable_id: UUID, about: dict[str, Any]) -> None:
        self._client, self._id, self._about = client, variable_id, about
        self._signs, self._told_s = 0, time.monotonic()

    def keep(self) -> None:
        """Say that this submission goes on; to be called between requests, however often.

        Raises:
            AutolabelError: it was silent for so long that another one took its place.

        """
        from prefect.exceptions import PrefectHTTPStatusError

        if time.monotonic() - self._told_s < SIGN_EVERY_S:
            return
        self._signs += 1
        value = self._about | {"signs_of_life": self._signs}
        try:
            self._client.request(
                "PATCH", "/variables/{id}", path_params={"id": self._id}, json={"value": value}
            )
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            raise AutolabelError(
                f"this submission gave no sign of life for {SILENT_S:.0f} s, and another one took "
                "its place: repeat the same command for what is left"
            ) from None
        self._told_s = time.monotonic()


@contextlib.contextmanager
def turn_of(run_key: str, out_uri: str) -> Iterator[Turn]:
    """Wait until no other submission of a run to a storage is under way; keep others out.

    One that gives no sign of life is passed over after `SILENT_S` seconds.

    Args:
        run_key: of the run.
        out_uri: its storage; other storages may get the same run at the same time.

    Raises:
        AutolabelError: Prefect is not there.

    """
    from httpx import HTTPError

    where = hashlib.sha256(f"{run_key} {out_uri}".encode()).hexdigest()[:24]
    about = {
        "submission": uuid4().hex, "run_key": run_key, "out": out_uri,
        "by": f"process {os.getpid()} on {platform.node()}",
    }  # fmt: skip
    with connected() as client:
        variable_id = _taken(client, f"autolabel-submitting-{where}", about)
        try:
            yield Turn(client, variable_id, about)
        finally:
            # A server that is away keeps nobody from ending; the next one passes over what stays.
            with contextlib.suppress(HTTPError), asked_once():
                _delete(client, variable_id)


def _taken(client: SyncPrefectClient, name: str, about: dict[str, Any]) -> UUID:
    """Make the variable as soon as nobody else has one; return its id."""
    from prefect.client.schemas.actions import VariableCreate
    from prefect.exceptions import ObjectAlreadyExists

    seen: object = None
    unchanged = 0  # looks: while the server was away, nobody could give a sign
    while True:
        with contextlib.suppress(ObjectAlreadyExists):
            return client.create_variable(VariableCreate(name=name, value=about)).id
        other = client.read_variable_by_name(name)
        if other is None:
            continue
        value = other.value if isinstance(other.value, dict) else {}
        if value.get("submission") == about["submission"]:
            return other.id  # the first answer was lost, and Prefect's client asked again
        if seen is None:
            log.warning("waiting for the same run's submission by %s", value.get("by"))
        unchanged = unchanged + 1 if seen == (other.id, other.value) else 0
        seen = (other.id, other.value)
        if unchanged * LOOK_EVERY_S >= SILENT_S:
            _delete(client, other.id)
            continue
        time.sleep(LOOK_EVERY_S)


def _delete(client: SyncPrefectClient, variable_id: UUID) -> None:
    """Delete a variable that may be gone."""
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        client.request("DELETE", "/variables/{id}", path_params={"id": variable_id})
    except PrefectHTTPStatusError as error:
        if error.response.status_code != 404:
            raise
