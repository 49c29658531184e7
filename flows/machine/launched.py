"""How supervisord starts a program: `python -m flows.machine.launched NUMBER COMMAND...`.

The program ends with supervisord, even with one that was killed. Of a program that listens on a
port, number 1 does nothing: while it runs, supervisord holds the port, also when number 0, the
program itself, is started again. Workers would send a password to whoever else got the port.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

SET_PARENT_DEATH_SIGNAL = 1  # of Linux' prctl


def main() -> None:
    """Become the program, or hold its port."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if parent == 1 or os.getppid() != parent:
        sys.exit("supervisord has ended")
    if sys.argv[1] == "0":
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - ours
    while os.getppid() == parent:
        time.sleep(1)


if __name__ == "__main__":
    main()
