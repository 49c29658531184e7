"""What our Prefect servers do differently on SQLite, so that they never stand still for a minute.

Prefect lets a connection wait 60 s for SQLite's write lock. Two things made a server spend that
minute answering nothing at all, not even `/api/health`:

- A transaction that reads and then writes is refused at once ("database is locked") if another one
  has written in between. Prefect begins most transactions like that. Clients are told 503 and ask
  again after seconds; what a background service was doing is lost.
- Python (3.11 at least) lets a cursor keep a statement that failed until the cursor is freed, which
  needs the connection's mutex. The exception's traceback holds the cursor, so it is the event loop
  that frees it, later, when the connection serves somebody else. If that one is waiting for the
  write lock, the event loop waits with it, and who has the lock needs the event loop to commit.

So a cursor that fails is closed where it failed, in the connection's own thread, and a transaction
takes the write lock when it begins.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Self

from sqlalchemy import event
from sqlalchemy.engine import Engine


class ClosingCursor(sqlite3.Cursor):
    """A cursor that holds no statement any more once one has failed."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Execute a statement; closes the cursor if that fails."""
        try:
            return super().execute(sql, parameters)
        except sqlite3.Error:
            self.close()
            raise

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        """Execute a statement for several rows; closes the cursor if that fails."""
        try:
            return super().executemany(sql, parameters)
        except sqlite3.Error:
            self.close()
            raise


class ClosingConnection(sqlite3.Connection):
    """A connection whose cursors are closed where they fail."""

    def cursor(self, factory: Any = ClosingCursor) -> Any:
        """Make a cursor."""
        return super().cursor(factory)


def never_stand_still(engines: Engine | type[Engine] = Engine) -> None:
    """Apply both to the SQLite connections that SQLAlchemy opens from now on.

    Args:
        engines: one engine, or every engine of this process. Other databases are left alone.

    """
    event.listen(engines, "do_connect", _with_closing_cursors)
    event.listen(engines, "before_cursor_execute", _begin_with_the_lock, retval=True)


def _with_closing_cursors(
    dialect: Any, _record: object, _arguments: object, options: dict[str, Any]
) -> None:
    if dialect.name == "sqlite":
        options["factory"] = ClosingConnection


def _begin_with_the_lock(
    _connection: object,
    _cursor: object,
    statement: str,
    parameters: Any,
    _context: object,
    _many: bool,
) -> tuple[str, Any]:
    return ("BEGIN IMMEDIATE" if statement == "BEGIN DEFERRED" else statement), parameters
