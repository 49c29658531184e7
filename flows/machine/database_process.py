"""A process that keeps our database running: `python -m flows.machine.database_process`.

The database is stopped by the last process that uses it; `autolabel up` starts this one to use it
until `autolabel down`. Where the database is killed this one ends, and starts it again when its
supervisor starts this one.
"""

import signal
import sys
import time

from sam2_core.types import AutolabelError
from tasks.dataset.database import ensure_database, running_server


def main() -> None:
    """Hold the database until SIGTERM; its last user's exit stops it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        ensure_database()
    except AutolabelError as error:
        sys.exit(str(error))  # a sentence, which `up` passes on
    while running_server():
        time.sleep(0.5)


if __name__ == "__main__":
    main()
