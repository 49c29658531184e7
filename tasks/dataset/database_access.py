"""A database that goes away: waited for, and then left alone, in words.

Labels and decisions are in storage before the dataset shows them. So a database that does not come
back costs no label and no failed shard: what it lacks is loaded later, by the flow `load-dataset`.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from tenacity import (
    RetryError,
    Retrying,
    before_sleep_log,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from sam2_core.redaction import redact
from sam2_core.types import AutolabelError
from tasks.dataset.database import (
    ADVICE,
    OWNED_VARIABLE,
    URI_VARIABLE,
    database_folder,
    disk_is_full,
    ensure_database,
    version_of,
)

WAIT_VARIABLE = "AUTOLABEL_DATABASE_WAIT_S"
WAIT_S = 60.0
PAUSE_S = 2.0
ANSWER_TIMEOUT_MS = 5000
# After one wait in vain nothing else of this process waits as long, for so long.
LEFT_ALONE_S = 300.0
# How long who looks at the App waits: a killed server is back within two seconds.
PATIENCE_S = 6.0
PING_S = 2.0
LOCK_PAUSE_S, RELEASE_S = 0.05, 2.0  # of a lock in the database

# pymongo's and mongoengine's, by name: neither is imported to ask.
_NAMES = {"ConnectionFailure", "AutoReconnect"}
_SHUTTING_DOWN = {91, 11600, 11602}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
log = logging.getLogger(__name__)
_left_alone_until = 0.0


class DatabaseAwayError(AutolabelError):
    """The database does not answer; labels and decisions are in storage all the same."""


def reach_database() -> None:
    """Do what `ensure_database` does, and see that a database of the user's own answers.

    Raises:
        AutolabelError: it does not, or as `ensure_database`; the message shows no password.

    """
    uri = ensure_database()
    if uri != os.environ.get(OWNED_VARIABLE):
        _see_answer(uri)


@functools.cache  # once a process: what goes away later is waited for
def _see_answer(uri: str) -> None:
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
        global _left_alone_until  # noqa: PLW0603
        wait_s = float(os.environ.get(WAIT_VARIABLE, WAIT_S))
        patience_s = 0.0 if time.monotonic() < _left_alone_until else wait_s
        try:
            waiting = _while_away(patience_s, PAUSE_S, before_sleep_log(log, logging.WARNING))
            result = waiting(call, *args, **kwargs)
        except RetryError as given_up:
            _left_alone_until = time.monotonic() + LEFT_ALONE_S
            error = given_up.last_attempt.exception()
            kind = type(_said_by_client(error)).__name__
            raise DatabaseAwayError(
                f"FiftyOne's database{_where()} does not answer ({kind}); the labels are in "
                "storage: when it is back, the flow `load-dataset` loads what it lacks"
            ) from error
        _left_alone_until = 0.0
        return result

    return patient


def await_answer(patience_s: float = PATIENCE_S) -> None:
    """Return as soon as FiftyOne's database answers this process.

    Raises:
        DatabaseAwayError: it does not within `patience_s` seconds.

    """
    try:
        _while_away(patience_s)(_ping)
    except RetryError as given_up:
        raise DatabaseAwayError(
            "FiftyOne's database does not answer, and nothing was changed: the terminal where the "
            f"App was started says why; try again in a moment. {ADVICE.capitalize()}"
        ) from given_up.last_attempt.exception()


def show_stored(show: Callable[[], None]) -> None:
    """Show in the dataset what is in storage already, once the database answers.

    Args:
        show: does it; may be called again.

    Raises:
        DatabaseAwayError: the database does not answer for `PATIENCE_S` seconds.

    """
    try:
        _while_away(PATIENCE_S)(show)
    except RetryError as given_up:
        raise DatabaseAwayError(
            "this is in storage, and nothing is lost, but FiftyOne's database does not answer: the "
            "dataset shows it when it is loaded again (`autolabel label` or `review rebuild`)"
        ) from given_up.last_attempt.exception()


def end_without_waiting() -> None:
    """Have this process end at once where its database is gone. FiftyOne is imported by now.

    At exit FiftyOne asks the database to tidy up, and would wait half a minute for its answer.
    """
    atexit.register(_leave)


def _leave() -> None:
    from fiftyone.core.odm import database as fiftyone_database

    try:
        await_answer(1.0)
    except DatabaseAwayError:
        atexit.unregister(fiftyone_database._delete_non_persistent_datasets_if_allowed)


def _ping() -> None:
    import pymongo
    from pymongo.errors import AutoReconnect, PyMongoError

    try:
        with pymongo.timeout(PING_S):
            _client().admin.command("ping")
    except PyMongoError as error:
        if error.timeout:  # shown by other errors than a lost connection, too
            raise AutoReconnect(str(error)) from error
        raise


def _client() -> Any:
    import fiftyone.core.odm as foo

    return foo.get_db_client()


def _while_away(
    patience_s: float, pause_s: float = 0.2, before_sleep: Callable[[Any], None] | None = None
) -> Retrying:
    return Retrying(
        retry=retry_if_exception(is_away), stop=stop_after_delay(patience_s),
        wait=wait_fixed(pause_s), before_sleep=before_sleep,
    )  # fmt: skip


def _where() -> str:
    """Say which database of the user's own that is; of ours, only a disk that is full."""
    uri = os.environ.get(URI_VARIABLE)
    if uri and uri != os.environ.get(OWNED_VARIABLE):
        return f" at {redact(uri)} ({URI_VARIABLE})"
    folder = database_folder()
    if not disk_is_full(folder):
        return ""
    return (
        f" in {folder}, whose disk is full (make room there, or set AUTOLABEL_DATABASE_DIR to "
        "another folder)"
    )


def is_away(error: BaseException) -> bool:
    """Whether that is how a database that is gone, or going, shows itself."""
    return _said_by_client(error) is not None


def _said_by_client(error: BaseException | None) -> BaseException | None:
    """Return what the database's client said, not what was made of it; None for other errors."""
    found = None
    while error is not None and not isinstance(error, DatabaseAwayError):
        is_fiftyones = isinstance(error, ConnectionError) and "mongod" in str(error)
        is_clients = {base.__name__ for base in type(error).__mro__} & _NAMES
        if is_fiftyones or is_clients or getattr(error, "code", None) in _SHUTTING_DOWN:
            found = error
        error = error.__cause__ or error.__context__
    return found


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
