"""Errors in the log of Prefect's server; the lines are those of real ones."""

from dataclasses import asdict

from flows.cli import status
from flows.machine.server_log import HISTORY_ONLY, errors_in

FAILING = """\
12:00:00.001 | WARNING | prefect.server.utilities - a warning, no ERROR of its own
12:00:01.001 | ERROR   | prefect.server.services.scheduler - Unexpected error in: Scheduler
Traceback (most recent call last):
  File "/x/prefect/server/services/scheduler.py", line 1, in run
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
UVICORN = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 4200)\n"


def test_errors_are_counted_and_the_last_is_told_with_its_exception(tmp_path):
    log = tmp_path / "server.log"
    assert errors_in(log) is None
    log.write_text(FAILING.splitlines()[0] + "\n")
    assert errors_in(log) is None
    log.write_text(FAILING * 3)
    found = errors_in(log)
    assert (found.count, found.log) == (3, str(log))
    assert "Unexpected error in: Scheduler" in found.last
    assert "Can't evaluate bulk DML statement" in found.last
    log.write_text(FAILING + UVICORN)
    assert errors_in(log).count == 2
    assert "bind on address" in errors_in(log).last


def test_events_that_a_killed_server_lost_are_said_to_be_history_only(tmp_path, capsys):
    log = tmp_path / "server.log"
    log.write_text(LOST + "sqlite3.IntegrityError: NOT NULL constraint failed: events.occurred\n")
    found = errors_in(log)
    assert (found.count, found.meaning) == (1, HISTORY_ONLY)
    facts = {
        "label_runs": [],
        "database_bytes": 5_000_000,
        "workers_online": [],
        "workers_refused": {},
        "schedules": [],
        "runs": [],
    }
    status._show_all(facts | {"server_errors": asdict(found)}, 72)
    told = capsys.readouterr().out
    assert f"  {HISTORY_ONLY}\n" in told
    assert "Prefect's database: 5 MB\n" in told
    log.write_text(FAILING + LOST)
    found = errors_in(log)
    assert (found.count, found.meaning) == (2, "")
    assert "bulk DML" in found.last
