"""Programs that end with the process that started them, even with one that was killed."""

import ctypes
import os
import shutil
import signal
import sys

# Systems have it in the second, also when the PATH is short.
_SEARCHED = f"{os.environ.get('PATH', '')}{os.pathsep}{os.defpath}"
SETPRIV = shutil.which("setpriv", path=_SEARCHED) or "setpriv"
# Before a command line: it gets SIGTERM when its parent ends.
TIED = (SETPRIV, "--pdeathsig", "TERM", "--")
SET_PARENT_DEATH_SIGNAL = 1  # of Linux' prctl


def tie_to_parent(number: signal.Signals) -> None:
    """Have this process get a signal when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, number)
