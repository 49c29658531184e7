"""Programs that end with the process that started them, even with one that was killed."""

import ctypes
import signal
import sys

# Before a command line: it gets SIGTERM when its parent ends.
TIED = ("setpriv", "--pdeathsig", "TERM", "--")
SET_PARENT_DEATH_SIGNAL = 1  # of Linux' prctl


def tie_to_parent(number: signal.Signals) -> None:
    """Have this process get a signal when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, number)
