"""A database that goes away while labels are loaded: waited for, and then left alone.

Labels are complete in storage before they are loaded. So a database that does not come back costs
no label and no failed shard: what it lacks is loaded later, by the flow `load-dataset`.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from sam2_core.redaction import redact
from sam2_core.types import AutolabelError
from tasks.dataset.database import OWNED_VARIABLE, database_folder, ensure_database
from tasks.dataset.mongod import URI_VARIABLE, disk_is_full, version_of

WAIT_VARIABLE = "AUTOLABEL_DATABASE_WAIT_S"
WAIT_S = 60.0
PAUSE_S = 2.0
ANSWER_TIMEOUT_MS = 5000
# After one wait in vain nothing else of this process waits as long, for so long.
LEFT_ALONE_S = 300.0

# pymongo's and mongoengine's, by name: neither is imported to ask.
_NAMES = {"ConnectionFailure", "AutoReconnect"}
_SHUTTING_DOWN = {91, 11600, 11602}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
log = logging.getLogger(__name__)
_left_alone_until = 0.0


class DatabaseAwayError(AutolabelError):
    """The database does not answer; the labels are in storage all the same."""


def reach_database() -> None:
    """Do what `ensure_database` does, and see that a database of the user's own answers.

    Raises:
        AutolabelError: it does not, or as `ensure_database`; the message shows no password.

    """
    uri = ensure_database()
    if uri != os.environ.get(OWNED_VARIABLE):
        _ping(uri)


@functools.cache  # once a process: what goes away later is waited for
def _ping(uri: str) -> None:
    from pymongo.errors import PyMongoError

    try:
        version_of(uri, ANSWER_TIMEOUT_MS)
    except (PyMongoError, ValueError) as error:
        why = redact(str(error)).partition(" (configured timeouts")[0]
        raise AutolabelError(
            f"FiftyOne's database at {redact(uri)} does not answer: {why}. Start it, correct "
            f"{URI_VARIABLE}, or unset it to use a database of our own"
        ) from error


def waits_for_database(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function that can be repeated wait for a database that is away.

    The function then raises `DatabaseAwayError` when the database does not come back within
    `$AUTOLABEL_DATABASE_WAIT_S` seconds, 60 by default; at once when that happened moments ago.
    """

    @functools.wraps(call)
    def patient(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        retrying = Retrying(
            retry=retry_if_exception(is_away),
            stop=stop_after_delay(0 if time.monotonic() < _left_alone_until else _wait_s()),
            wait=wait_fixed(PAUSE_S),
            before_sleep=_tell,
        )
        try:
            result = retrying(call, *args, **kwargs)
        except RetryError as given_up:
            _leave_alone_until(time.monotonic() + LEFT_ALONE_S)
            error = given_up.last_attempt.exception()
            raise DatabaseAwayError(
                f"FiftyOne's database{_where()} does not answer ({_kind(error)}); the labels are "
                "in storage: when it is back, the flow `load-dataset` loads what it lacks"
            ) from error
        _leave_alone_until(0.0)
        return result

    return patient


def _where() -> str:
    """Say which database of the user's own that is; of ours, which has no such name, only a disk
    that is full.
    """  # noqa: D205
    uri = os.environ.get(URI_VARIABLE)
    if not uri or uri == os.environ.get(OWNED_VARIABLE):
        folder = database_folder()
        if not disk_is_full(folder):
            return ""
        return (
            f" in {folder}, whose disk is full (make room there, or set AUTOLABEL_DATABASE_DIR to "
            "another folder)"
        )
    return f" at {redact(uri)} ({URI_VARIABLE})"


def _kind(error: BaseException | None) -> str:
    """Name what the database's client said, not what we made of it."""
    names = [type(one).__name__ for one in _causes(error) if _says_away(one)] if error else []
    return names[-1] if names else type(error).__name__


def _tell(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning("the database does not answer (%s): again", type(error).__name__)


def is_away(error: BaseException) -> bool:
    """Whether that is how a database that is gone, or going, shows itself."""
    if isinstance(error, DatabaseAwayError):
        return False
    return any(_says_away(one) for one in _causes(error))


def _says_away(error: BaseException) -> bool:
    if {base.__name__ for base in type(error).__mro__} & _NAMES:
        return True
    if isinstance(error, ConnectionError):
        return "mongod" in str(error)  # FiftyOne's
    return getattr(error, "code", None) in _SHUTTING_DOWN


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _wait_s() -> float:
    try:
        return float(os.environ.get(WAIT_VARIABLE, WAIT_S))
    except ValueError:
        return WAIT_S


def _leave_alone_until(moment: float) -> None:
    global _left_alone_until  # noqa: PLW0603
    _left_alone_until = moment


LOCK_PAUSE_S = 0.05
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
        Retrying(retry=held, stop=stop_after_delay(patience_s), wait=wait_fixed(LOCK_PAUSE_S))(take)
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
