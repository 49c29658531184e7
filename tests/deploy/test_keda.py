"""What KEDA asks Prefect's database; of its own tables test_workers.py asks the same."""

import re
from importlib.metadata import version

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from flows.server.postgres import Postgres
from tests.conftest import REPOSITORY

TABLES = """
CREATE TABLE work_pool (id int, name text, is_paused bool);
CREATE TABLE work_queue (id int, work_pool_id int, concurrency_limit int, is_paused bool);
CREATE TABLE flow_run (work_queue_id int, state_type text, next_scheduled_start_time timestamptz);
INSERT INTO work_pool VALUES (1, 'gpu', false), (2, 'cpu', false);
INSERT INTO work_queue VALUES
  (1, 1, 2, false), (2, 1, NULL, false), (3, 1, NULL, true), (4, 2, NULL, false);
"""
RUNS = """
INSERT INTO flow_run SELECT id, 'SCHEDULED', now() FROM work_queue, generate_series(1, 5);
INSERT INTO flow_run SELECT id, 'RUNNING', now() FROM work_queue;
INSERT INTO flow_run SELECT id, 'COMPLETED', now() FROM work_queue;
INSERT INTO flow_run SELECT id, 'SCHEDULED', now() + interval '1 hour' FROM work_queue;
"""


@pytest.fixture
def connection(tmp_path):
    """A database without Prefect's tables, which take long to make."""
    folder = tmp_path / "prefect"
    folder.mkdir()
    (folder / "migrated").write_text(version("prefect"))
    server = Postgres(folder)
    engine = create_engine(make_url(server.url).set(drivername="postgresql+psycopg2"))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
        server.leave()


def test_kedas_query_counts_no_more_runs_than_their_queues_let_run(connection):
    """Where a queue lets two run, further Jobs would wait for nothing, each with a GPU."""
    template = (REPOSITORY / "deploy" / "chart" / "templates" / "workers.yaml").read_text()
    (query,) = re.findall(r"query: >-\n(.*?)\n +authenticationRef", template, re.DOTALL)
    count = text(query.replace("{{ $pool }}", "gpu"))
    connection.execute(text(TABLES))
    assert connection.execute(count).scalar() == 0
    connection.execute(text(RUNS))
    assert connection.execute(count).scalar() == 2 + 6
