"""Why a process ended, out of its log; the logs are those of real servers, shortened."""

import pytest

from flows.machine.last_words import last_words

UVICORN = """\
12:00:01.001 | WARNING | prefect - something
ERROR:    Traceback (most recent call last):
  File "/x/prefect/server/api/server.py", line 1, in lifespan
    await run_migrations()
    GLOBAL: Any = load()
sqlite3.OperationalError: disk I/O error

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/sqlalchemy/engine/base.py", line 1, in _execute
sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) disk I/O error
[SQL: PRAGMA journal_mode = WAL;]
(Background on this error at: https://sqlalche.me/e/20/e3q8)

ERROR:    Application startup failed. Exiting.
"""
FATAL = """\
Fatal Python error: _enter_buffered_busy: could not acquire lock for <_io.BufferedReader>
Python runtime state: finalizing (tstate=0x00)

Current thread 0x00 (most recent call first):
  <no Python frame>
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/x/anyio.py", line 1, in __aexit__
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/x/prefect/server.py", line 3, in start
    | ValueError: no such block
    +------------------------------------
"""
INVALID = """\
Traceback (most recent call last):
  File "/x/prefect/settings.py", line 1, in load
x.ValidationError: 1 validation error for Settings
port
  Input is no integer
    For further information visit https://errors.pydantic.dev
"""
INTERRUPTED = """\
Traceback (most recent call last):
  File "/x/uvicorn/server.py", line 1, in run
KeyboardInterrupt
"""
REASON = "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) disk I/O error"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("one\nPort 4200 is already in use.\n\n", "Port 4200 is already in use."),
        (UVICORN, REASON),
        (UVICORN + FATAL, REASON),
        (FATAL, FATAL.splitlines()[0]),
        (INVALID, "x.ValidationError: 1 validation error for Settings port Input is no integer"),
        (GROUP, "ValueError: no such block"),
        (INTERRUPTED, "KeyboardInterrupt"),
    ],
)
def test_last_words(log, words):
    assert last_words(log) == words
