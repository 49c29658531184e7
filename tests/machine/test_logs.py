"""Why a service ended; logs are real ones, shortened."""

import pytest

from flows.machine.services import last_words

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
