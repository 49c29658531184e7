"""A flow run whose worker was killed goes on to its polite end, though nobody reads what it prints.

What Prefect logs goes through Rich, which ends the process at the first line that nobody reads: the
shard would be Crashed, instead of given back at the end of the chunk at hand.
"""

from __future__ import annotations

import os
import select
import sys
import threading


def go_on_unheard() -> None:
    """Send what this process prints nowhere, from the moment on that nobody reads it."""
    if sys.platform == "linux":
        threading.Thread(target=_await_silence, name="unheard", daemon=True).start()


def _await_silence() -> None:
    watched = select.poll()
    for stream in (1, 2):
        watched.register(stream, 0)  # for its reader's end alone
    watched.poll()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
