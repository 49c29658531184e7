"""The database of this user for Prefect: kept, closed to others, started again, made by one."""

import os
import shutil
import signal
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from flows.server import postgres
from flows.server.postgres import Postgres, size_bytes
from sam2_core.types import AutolabelError
from tests.integration.cluster import wait_for
from tests.prefect_tables import put_tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a database that two commands made at once, as each other's first."""
    return put_tables(tmp_path_factory.mktemp("prefect") / "prefect")


def asked(server, statement, password=None):
    """Ask it as Prefect would."""
    url = make_url(server.url).set(drivername="postgresql+psycopg2")
    engine = create_engine(url.set(password=password) if password else url)
    try:
        with engine.begin() as connection:
            return connection.execute(text(statement)).scalar()
    finally:
        engine.dispose()


def test_it_is_kept_and_ends_with_its_last_user(folder):
    first, second = Postgres(folder), Postgres(folder)
    assert first.process_id == second.process_id
    asked(first, "INSERT INTO configuration (key, value) VALUES ('kept', '{}') RETURNING key")
    first.leave()
    assert asked(second, "SELECT count(*) FROM flow") == 0
    second.leave()
    assert second.process_id is None
    assert size_bytes(folder) > 20_000_000
    third = Postgres(folder)
    assert asked(third, "SELECT count(*) FROM configuration WHERE key = 'kept'") == 1
    third.leave()


def test_nobody_else_gets_in(folder):
    server = Postgres(folder)
    try:
        process = psutil.Process(server.process_id)
        assert [one for one in process.net_connections() if one.family.name != "AF_UNIX"] == []
        sockets = Path(make_url(server.url).query["host"])
        assert [path.stat().st_mode & 0o077 for path in (folder, sockets, folder / "data")] == [
            0
        ] * 3
        with pytest.raises(OperationalError, match="authentication failed"):
            asked(server, "SELECT 1", password="guessed")
        assert server.url.split(":")[2].split("@")[0] not in " ".join(process.cmdline())
    finally:
        server.leave()


@pytest.mark.parametrize("reused", [False, True])
def test_it_starts_where_a_killed_one_left_its_files(folder, reused):
    """After a reboot the process id that it left may be another's."""
    server = Postgres(folder)
    os.kill(server.process_id, signal.SIGKILL)
    if reused:
        server._users.close()
        time.sleep(1)
        for file in (folder / "data" / "postmaster.pid", *folder.glob("run/.s.*.lock")):
            lines = file.read_text().splitlines()
            file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
        server = Postgres(folder)
    else:
        with server.changing:
            server.start()
            started = server.process_id
            server.start()
            assert server.process_id == started
    assert asked(server, "SELECT count(*) FROM flow") == 0
    server.leave()


def test_whoever_has_it_starts_it_again_and_stops_it(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(postgres, "home", lambda: folder)
    with postgres.running() as user:
        before = user.process_id
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: user.process_id not in {None, before}, 60)
    assert user.process_id is None


def test_tables_of_another_prefect_are_told_with_the_cure(folder):
    server = Postgres(folder)
    known = asked(server, "SELECT version_num FROM alembic_version")
    asked(server, "UPDATE alembic_version SET version_num = 'ffffffffffff' RETURNING 1")
    server.leave()
    (folder / "migrated").write_text("99.1")
    with pytest.raises(AutolabelError, match=r"tables that Prefect 99\.1 made.*clear prefect"):
        Postgres(folder)
    (folder / "migrated").write_text(version("prefect"))
    server = Postgres(folder)
    asked(server, f"UPDATE alembic_version SET version_num = '{known}' RETURNING 1")
    server.leave()


def test_it_works_below_a_long_path_and_data_of_another_version_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(Postgres, "_migrate", lambda _: None)
    long = tmp_path / ("so long a path that no socket fits below it" * 3)
    server = Postgres(long)
    assert asked(server, "SELECT 1") == 1
    sockets = Path(make_url(server.url).query["host"])
    server.leave()
    assert sockets.stat().st_mode & 0o077 == 0
    shutil.rmtree(sockets)
    (long / "data" / "PG_VERSION").write_text("17\n")
    monkeypatch.setattr(postgres, "START_S", 0.0)
    with pytest.raises(AutolabelError, match=r"version 17.*cache clear prefect"):
        Postgres(long)


def test_the_systems_programs_do_as_well_and_without_any_it_says_what_to_install(
    tmp_path, monkeypatch
):
    def not_here(name: str) -> None:
        raise postgres.PackageNotFoundError(name)

    monkeypatch.setattr(postgres, "distribution", not_here)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AutolabelError, match=r"no PostgreSQL here.*PREFECT_API_URL"):
        postgres._programs()
    (tmp_path / "pg_ctl").touch(0o755)
    assert postgres._programs() == str(tmp_path)
