"""Starts a program that ends with its parent: `python -m flows.machine.launched NUMBER PARENT ...`.

It gets SIGTERM when PARENT ends, the process that started it, even by a kill. Of one that listens
on a port, number 1 does nothing: while it runs, supervisord holds the port, also when number 0, the
program, is started again. Workers would send a password to whoever else got the port.
"""

import ctypes
import os
import signal
import sys
import time

SET_PARENT_DEATH_SIGNAL = 1  # of Linux' prctl


def tie_to_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have this process get a signal when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, number)


def main() -> None:
    """Become the program, or hold its port."""
    number, parent, *command = sys.argv[1:]
    tie_to_parent()
    if os.getppid() != int(parent):  # it has ended before it could be watched
        sys.exit("whoever started this has ended")
    if number == "0":
        os.execv(command[0], command)  # noqa: S606 - ours
    while os.getppid() == int(parent):
        time.sleep(1)


if __name__ == "__main__":
    main()
