"""A process that keeps our database running: `python -m flows.machine.database_process`.

The database is stopped by the last process that uses it; `autolabel up` starts this one to use it
until `autolabel down`. Where the database is killed this one ends, and starts it again when its
supervisor starts this one.
"""

import signal
import sys
import threading

from sam2_core.types import AutolabelError
from tasks.dataset.database import ensure_database, running_server
from tasks.processes import handling


def main() -> None:
    """Hold the database until SIGTERM; its last user's exit stops it."""
    stop = threading.Event()
    with handling(lambda *_: stop.set(), signal.SIGTERM, signal.SIGINT):
        try:
            ensure_database()
        except AutolabelError as error:
            sys.exit(str(error))  # a sentence, which `up` passes on
        while running_server() and not stop.wait(0.5):
            pass


if __name__ == "__main__":
    main()
