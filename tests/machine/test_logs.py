"""Why a service ended; the log is a real one, shortened."""

from flows.machine.services import LONGEST, last_words

UVICORN = """\
12:00:01.001 | WARNING | prefect - something
sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) disk I/O error
[SQL: PRAGMA journal_mode = WAL;]

ERROR:    Application startup failed. Exiting.
"""


def test_last_words(tmp_path):
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_text(UVICORN)
    assert "disk I/O error [SQL: PRAGMA" in last_words(log)
    assert last_words(log).endswith("ERROR:    Application startup failed. Exiting.")
    log.write_text(2000 * "long")
    assert len(last_words(log)) == LONGEST
