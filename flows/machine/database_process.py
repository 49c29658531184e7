"""A process that keeps our database running: `python -m flows.machine.database_process`.

The database is stopped by the last process that uses it; `autolabel up` starts this one to use it
until `autolabel down`, and to start it again where it is killed.
"""

from __future__ import annotations

import signal
import sys
import threading

from sam2_core.types import AutolabelError
from tasks.dataset.database import DatabaseKeeper, ensure_database, release_database


def main() -> None:
    """Hold the database until SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        ensure_database()
    except AutolabelError as error:
        sys.exit(str(error))  # a sentence, which `up` passes on
    database = DatabaseKeeper()
    while not stop.wait(0.5):
        if done := database.look():
            sys.stdout.write(f"{done}\n")
            sys.stdout.flush()
    release_database()


if __name__ == "__main__":
    main()
