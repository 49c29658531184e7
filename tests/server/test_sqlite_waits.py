"""Prefect's server on SQLite never waits for somebody who is waiting for it."""

import asyncio
import gc
import threading

import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration

from flows.server.sqlite_waits import never_stand_still

WAIT_MS = 3000  # for the write lock; Prefect's servers wait 60 s


async def _opened(folder):
    """Prefect's own configuration of a database with one table, and an engine with short waits."""
    configuration = AioSqliteConfiguration(f"sqlite+aiosqlite:///{folder}/prefect.db")
    engine = await configuration.engine()
    never_stand_still(engine.sync_engine)

    def wait_shorter(connection, _record):
        connection.execute(f"PRAGMA busy_timeout = {WAIT_MS}")

    sa.event.listen(engine.sync_engine, "connect", wait_shorter)
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE runs (name TEXT UNIQUE)"))
    return configuration, engine


def test_two_that_read_before_they_write_both_succeed(tmp_path):
    async def add(session, name):
        await session.execute(sa.text("SELECT count(*) FROM runs"))
        await session.execute(sa.text("INSERT INTO runs VALUES (:name)"), {"name": name})

    async def whole(configuration, engine, name):
        session = await configuration.session(engine)
        async with session, configuration.begin_transaction(session):
            await add(session, name)

    async def both():
        configuration, engine = await _opened(tmp_path)
        first = await configuration.session(engine)
        async with first, configuration.begin_transaction(first):
            await first.execute(sa.text("SELECT count(*) FROM runs"))
            second = asyncio.create_task(whole(configuration, engine, "b"))
            await asyncio.wait({second}, timeout=0.5)  # it is done by then, or waits for the first
            await add(first, "a")
        await second
        async with engine.connect() as connection:
            found = await connection.scalars(sa.text("SELECT name FROM runs ORDER BY name"))
            names = found.all()
        await engine.dispose()
        return names

    assert asyncio.run(both()) == ["a", "b"]


def test_the_loop_is_not_held_up_by_what_a_failed_statement_left(tmp_path):
    """One commits only if the event loop goes on; another waits for it, as long as it may."""

    async def failed(session):
        """A refused statement, with its traceback, as whoever logs or retries it holds it."""
        try:
            await session.execute(sa.text("INSERT INTO runs VALUES ('a')"))
        except sa.exc.IntegrityError as error:
            return error
        raise AssertionError

    async def scenario():
        configuration, engine = await _opened(tmp_path)
        holder = await configuration.session(engine)
        waiter = await configuration.session(engine)
        async with holder, waiter:
            await waiter.execute(sa.text("INSERT INTO runs VALUES ('a')"))
            error = await failed(waiter)
            await holder.execute(sa.text("BEGIN IMMEDIATE"))
            waits = await _told_when_it_begins(waiter)
            waiting = asyncio.create_task(
                waiter.execute(sa.text("INSERT INTO runs VALUES ('b')")), name="waiting"
            )
            await asyncio.to_thread(waits.wait)
            del error
            gc.collect()
            await holder.execute(sa.text("COMMIT"))
            await waiting
            count = await waiter.scalar(sa.text("SELECT count(*) FROM runs"))
        await engine.dispose()
        return count

    assert asyncio.run(scenario()) == 2


async def _told_when_it_begins(session):
    """An event that is set when the session's next statement begins, in its own thread."""
    connection = await session.connection()
    raw = (await connection.get_raw_connection()).driver_connection
    began = threading.Event()
    await raw.set_trace_callback(lambda _sql: began.set())
    return began
