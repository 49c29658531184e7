"""Steps that do to their process what machines do; processes import them by this module's name."""

import logging
import os
import signal
import sys
from pathlib import Path

from sam2_core.types import DeviceLostError, DeviceMemoryError


def who(*_):
    logging.getLogger("tasks.test").warning("here is %d", os.getpid())
    return os.getpid()


def imported(*given):
    """Return which of these modules the process has imported."""
    return [name for name in given[-1] if name in sys.modules]


def ends_once(marker, frames):
    """End the process the first time."""
    if not Path(marker).exists():
        Path(marker).write_text(str(os.getpid()))
        os._exit(9)
    return frames, os.getpid() != int(Path(marker).read_text())


def ends_always():
    os._exit(9)


def is_killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def loses_the_device():
    raise DeviceLostError("the GPU is lost to this process")


def needs_the_device_alone(folder):
    """Fail for want of memory in all but the first of the processes that come here."""
    try:
        Path(folder, "taken").mkdir()
        Path(f"{folder}/by").write_text(str(os.getpid()))
    except FileExistsError:
        if Path(f"{folder}/by").read_text() != str(os.getpid()):
            raise DeviceMemoryError("the GPU has no memory left") from None
    return os.getpid()
