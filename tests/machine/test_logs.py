"""Why a service ended, and of what Prefect's server complains; logs are real ones, shortened."""

from dataclasses import asdict

import pytest

from flows.cli import status
from flows.machine.logs import HISTORY_ONLY, errors_in, last_words

UVICORN = """\
12:00:01.001 | WARNING | prefect - something
ERROR:    Traceback (most recent call last):
  File "/x/prefect/server/api/server.py", line 1, in lifespan
    await run_migrations()
sqlite3.OperationalError: disk I/O error

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/sqlalchemy/engine/base.py", line 1, in _execute
sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) disk I/O error
[SQL: PRAGMA journal_mode = WAL;]

ERROR:    Application startup failed. Exiting.
"""
FATAL = """\
Fatal Python error: _enter_buffered_busy: could not acquire lock for <_io.BufferedReader>
  <no Python frame>
"""
GROUP = """\
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/x/prefect/server.py", line 3, in start
    | ValueError: no such block
    +------------------------------------
"""
INVALID = """\
x.ValidationError: 1 validation error for Settings
port
  Input is no integer
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("one\nPort 4200 is already in use.\n\n", "Port 4200 is already in use."),
        (
            UVICORN + FATAL,
            "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) disk I/O error",
        ),
        (INVALID, "x.ValidationError: 1 validation error for Settings port Input is no integer"),
        (GROUP, "ValueError: no such block"),
        ("  File 1, in run\nKeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_last_words(tmp_path, log, words):
    (tmp_path / "log").write_text(log)
    assert last_words(tmp_path / "log") == words


FAILING = """\
12:00:00.001 | WARNING | prefect.server.utilities - a warning, no ERROR of its own
12:00:01.001 | ERROR   | prefect.server.services.scheduler - Unexpected error in: Scheduler
Traceback (most recent call last):
    raise sqlalchemy.exc.InvalidRequestError
sqlalchemy.exc.InvalidRequestError: Can't evaluate bulk DML statement
12:00:02.001 | INFO    | prefect.server - fine
"""
LOST = """\
12:00:04.001 | ERROR   | prefect.server.events.services.event_persister - Max flush retries (5) \
reached, dropping 110 events
12:00:05.001 | WARNING | prefect.server - of something else
Traceback (most recent call last):
ValueError: of something else
"""
BOUND = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 4200)\n"


def test_errors_of_the_server_are_counted_and_what_matters_is_told(tmp_path, capsys):
    log = tmp_path / "server.log"
    assert errors_in(log) is None
    log.write_text(FAILING.splitlines()[0] + "\n")
    assert errors_in(log) is None
    log.write_text(FAILING * 3)
    found = errors_in(log)
    assert (found.count, found.log, found.meaning) == (3, str(log), "")
    assert "Unexpected error in: Scheduler: sqlalchemy.exc.InvalidRequestError" in found.last
    assert "Can't evaluate bulk DML statement" in found.last
    log.write_text(FAILING + BOUND)
    assert (errors_in(log).count, "bind on address" in errors_in(log).last) == (2, True)
    log.write_text(FAILING + LOST)
    assert "bulk DML" in errors_in(log).last
    log.write_text(LOST)
    found = errors_in(log)
    assert (found.count, found.meaning) == (1, HISTORY_ONLY)
    facts = {"label_runs": [], "database_bytes": 5_000_000, "workers_online": []}
    facts |= {"workers_refused": {}, "schedules": [], "runs": [], "server_errors": asdict(found)}
    status._show_all(facts, 72)
    told = capsys.readouterr().out
    assert f"  {HISTORY_ONLY}\n" in told
    assert "Prefect's database: 5 MB\n" in told
