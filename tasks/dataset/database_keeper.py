"""A database of ours that is killed while somebody uses it: started again, or given up in words.

The system may kill mongod where memory is short. Labels and decisions are in storage, so all that
is at stake is the time of who waits for an answer.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from typing import Any

from tenacity import RetryError, Retrying, retry_if_exception, stop_after_delay, wait_fixed

from sam2_core.types import AutolabelError
from tasks.dataset.database import own_server, start_again
from tasks.dataset.database_access import DatabaseAwayError, is_away
from tasks.dataset.mongod_process import is_alive

MOST_STARTS = 5
PATIENCE_S = 6.0  # a killed server is back within two seconds
PAUSE_S = 0.2
PING_S = 2.0
ADVICE = "every decision that has its mark is in storage: nothing is lost"


class DatabaseKeeper:
    """Starts our database again where it was killed; leaves a user's own database alone."""

    def __init__(self) -> None:
        self._server = own_server()
        self._left = MOST_STARTS

    def look(self) -> str:
        """Return what was done about the database in words; "" where nothing was.

        Raises:
            AutolabelError: it is gone for good; says why.

        """
        if self._server is None or is_alive(self._server):
            return ""
        began = time.monotonic()
        try:
            if not self._left:
                raise AutolabelError(f"it was killed {MOST_STARTS + 1} times: is memory short?")
            self._left -= 1
            self._server = start_again(self._server)
        except AutolabelError as error:
            raise AutolabelError(
                f"FiftyOne's database is gone: {error}. {ADVICE.capitalize()}; the next command "
                "that needs it starts it"
            ) from error
        took = time.monotonic() - began
        return f"FiftyOne's database was killed, and started again within {took:.1f} s; {ADVICE}"


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


def _while_away(patience_s: float) -> Retrying:
    return Retrying(
        retry=retry_if_exception(is_away),
        stop=stop_after_delay(patience_s),
        wait=wait_fixed(PAUSE_S),
    )


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
