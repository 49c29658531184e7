"""Locks in FiftyOne's database itself: they hold across processes and machines."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Iterator

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from sam2_core.types import AutolabelError

PAUSE_S = 0.05
RELEASE_S = 2.0


@contextlib.contextmanager
def database_lock(name: str, what: str, lease_s: float, patience_s: float) -> Iterator[None]:
    """Hold the lock of a name.

    Args:
        name: of the lock.
        what: is locked, in words.
        lease_s: a holder that was killed loses it after so many seconds.
        patience_s: how long to wait for another holder.

    Raises:
        AutolabelError: somebody else holds it all the time.

    """
    import fiftyone.core.odm as foo
    import pymongo
    from pymongo.errors import DuplicateKeyError, PyMongoError

    locks = foo.get_db_conn()["autolabel.locks"]
    me = uuid.uuid4().hex

    def take() -> None:
        """Insert where there is no lock, take over an expired one, collide with a held one."""
        now = datetime.datetime.now(datetime.UTC)
        free = {"_id": name, "until": {"$lt": now}}
        until = now + datetime.timedelta(seconds=lease_s)
        locks.update_one(free, {"$set": {"holder": me, "until": until}}, upsert=True)

    held = retry_if_exception_type(DuplicateKeyError)
    try:
        Retrying(retry=held, stop=stop_after_delay(patience_s), wait=wait_fixed(PAUSE_S))(take)
    except RetryError:
        raise AutolabelError(
            f"{what}: locked by another process for {patience_s:.0f} s; try again later"
        ) from None
    try:
        yield
    finally:
        # A database that is gone has no use for it; what was done says so itself.
        with contextlib.suppress(PyMongoError), pymongo.timeout(RELEASE_S):
            locks.delete_one({"_id": name, "holder": me})
