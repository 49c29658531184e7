"""Starts a program that ends with its parent: `python -m flows.machine.launched NUMBER COMMAND...`.

It gets SIGTERM when whoever started it ends, even by a kill; supervisord, for instance. Of one that
listens on a port, number 1 does nothing: while it runs, supervisord holds the port, also when
number 0, the program, is started again. Workers would send a password to whoever else got the port.
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
    if os.getppid() != parent:
        sys.exit("whoever started this has ended")
    if sys.argv[1] == "0":
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - ours
    while os.getppid() == parent:
        time.sleep(1)


if __name__ == "__main__":
    main()
