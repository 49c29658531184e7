"""Steps that do to their process what machines do; processes import them by this module's name."""

import logging
import os
import signal
from pathlib import Path

from sam2_core.types import DeviceLostError, DeviceMemoryError


def who(*_):
    logging.getLogger("tasks.test").warning("here is %d", os.getpid())
    return os.getpid()


def ends_once(_, marker, frames):
    """End the process the first time."""
    if not Path(marker).exists():
        Path(marker).write_text(str(os.getpid()))
        os._exit(9)
    return frames, os.getpid() != int(Path(marker).read_text())


def ends_always(_):
    os._exit(9)


def is_killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def loses_the_device(*_):
    raise DeviceLostError("the GPU is lost to this process")


def lacks_memory(*_):
    raise DeviceMemoryError("the GPU has no memory left")
