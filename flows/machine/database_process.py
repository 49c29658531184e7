"""A process that keeps our database running: `python -m flows.machine.database_process`.

The database is stopped by the last process that uses it; `autolabel up` starts this one to use it
until `autolabel down`.
"""

from __future__ import annotations

import signal
import threading

from tasks.dataset.database import ensure_database, release_database


def main() -> None:
    """Hold the database until SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    ensure_database()
    stop.wait()
    release_database()


if __name__ == "__main__":
    main()
