"""One owner of a GPU in a process: a thread that all work on it goes through.

While a CUDA graph is captured, much of what another thread asks of the same device makes the
capture fail, or fails itself (`operation not permitted when stream is capturing`): allocations,
loading a session, even waiting for an event. So sessions are opened, memory is allocated, work is
queued and graphs are captured on this one thread, for the detector and the mask model alike. Other
threads only wait for events, and not while a graph is captured. What waits is the thread, not the
device: work is queued and comes back at once.

An error after which the driver answers every call with the same error (a "sticky" one) loses the
device for the process: from then on all work is refused at once, and the process must end.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sam2_core.machine_errors import first_line
from sam2_core.types import DeviceLostError

Result = TypeVar("Result")

# Names and texts of errors that stay until the process ends; see cudaError_t's documentation.
_STICKY = (
    "illegaladdress", "illegal memory access", "launchfailure", "unspecified launch failure",
    # In full: PyTorch's advice below every error of CUDA has the words "device-side assertions".
    "device-side assert triggered", "cudaerrorassert", "hardwarestackerror", "hardware stack error",
    "illegalinstruction", "illegal instruction", "misalignedaddress", "misaligned address",
    "invalidaddressspace", "invalid address space", "invalidpc", "invalid program counter",
    "launchtimeout", "launch timed out", "eccuncorrectable", "uncorrectable ecc",
    "nvlinkuncorrectable", "cudaerrorcontained", "fell off the bus", "devicesunavailable",
    "unknown error", "cudaerrorunknown", "cuda failure 700", "cuda failure 719", "cuda failure 214",
    "context is destroyed", "contextisdestroyed", "invalid access of peer gpu memory",
    # Of a call, not of a machine that has none.
    "no cuda-capable device", "no cuda gpus", "failed with cudaerrornodevice",
    "systemnotready", "system not yet initialized",
)  # fmt: skip


def is_sticky(error: BaseException) -> bool:
    """Whether the device is lost to this process after an error, by the error's name or text."""
    if isinstance(error, DeviceLostError):
        return True
    text = str(error).lower()
    about_cuda = "cuda" in text or "cudnn" in text or "cublas" in text
    return about_cuda and any(word in text for word in _STICKY)


class DeviceOwner:
    """The thread that a device belongs to."""

    def __init__(self, name: str = "device") -> None:
        self._thread = ThreadPoolExecutor(1, name, initializer=self._enter)
        self._ident = 0
        # Why the device is lost to this process; None while it works.
        self.lost: DeviceLostError | None = None
        # Threads that wait for events, and whether a graph is being captured.
        self._changed = threading.Condition()
        self._waiting, self._capturing = 0, False

    def _enter(self) -> None:
        self._ident = threading.get_ident()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue a function; the calling thread goes on."""
        return self._thread.submit(self.beside, work)

    def run(self, work: Callable[[], Result]) -> Result:
        """Run a function on the device's thread and return what it returns.

        Raises:
            DeviceLostError: the device is lost to this process.

        """
        if threading.get_ident() == self._ident:
            return self.beside(work)
        return self.submit(work).result()

    def wait(self, wait: Callable[[], Result]) -> Result:
        """Wait on the calling thread for what was queued, not while a graph is captured."""
        with self._changed:
            self._changed.wait_for(lambda: not self._capturing)
            self._waiting += 1
        try:
            return self.beside(wait)
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Hold back every wait for the time of a capture; on the device's thread only."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._capturing = True
        try:
            yield
        finally:
            with self._changed:
                self._capturing = False
                self._changed.notify_all()

    def beside(self, work: Callable[[], Result]) -> Result:
        """Run on the calling thread what asks the driver for page-locked memory and no more.

        A device that is lost shows there, too.

        Raises:
            DeviceLostError: the device is lost to this process.

        """
        if self.lost is not None:
            raise self.lost
        try:
            return work()
        except Exception as error:
            if not is_sticky(error):
                raise
            self.lost = self.lost or DeviceLostError(
                f"the GPU is lost to this process ({first_line(error)}): nothing is "
                "recorded, and the work is done by the next process. `nvidia-smi` and the kernel's "
                "log (dmesg, Xid) say more"
            )
            raise self.lost from (None if error is self.lost else error)


# Of this process's GPU.
DEVICE_OWNER = DeviceOwner("gpu")
