"""Which errors are the machine's and not a frame's: one place that decides it.

Only what is wrong with a frame is an answer about it. A disk that is full, a file handle that went
stale or a GPU that fell off its bus says nothing about the frame that happened to be at hand.
"""

import errno
from collections.abc import Iterator

from sam2_core.types import MachineError

# This process or this host is full, whatever is read or written.
_FULL = frozenset({
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT
})  # fmt: skip
_DISK = frozenset({errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EROFS})
# Libraries report these by text alone: CUDA (PyTorch, ONNX Runtime, the driver), threads, OpenCV.
_WORDS = (
    "cuda error", "cuda failure", "cudnn", "cublas", "cufft", "nvrtc", "cudaerror", "cuda_error",
    "device-side assert", "out of memory", "failed to allocate", "bad_alloc", "insufficient memory",
    "can't start new thread", "cannot allocate memory", "no kernel image",
    "no cuda-capable device", "no cuda gpus",
)  # fmt: skip

_LIBRARIES = {"torch", "onnxruntime", "cv2", "cuda", "tensorrt"}
_KINDS = {"AcceleratorError", "OutOfMemoryError", "EngineError"}


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its name where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]


def causes(error: BaseException | None, *, contexts: bool = False) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, each once.

    With `contexts` also what was handled meanwhile: libraries wrap errors without naming a cause.
    A chain may lead back into itself: one error of a lost device is raised again and again.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (error.__context__ if contexts else None)


def is_machine_error(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, is the machine's."""
    return any(map(_is_one, causes(error)))


def is_host_full(error: BaseException) -> bool:
    """Whether memory, file handles or disk space of this host are at an end.

    Clients of remote storage call what a server said EIO or a timeout: of those this is what is
    the machine's.
    """
    return any(
        isinstance(cause, (MachineError, MemoryError))
        or (isinstance(cause, OSError) and cause.errno in _FULL)
        for cause in causes(error)
    )


def _is_one(error: BaseException) -> bool:
    if isinstance(error, (MachineError, MemoryError)):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL | _DISK
    kind = type(error)
    library = kind.__module__.partition(".")[0] in _LIBRARIES
    if library and kind.__name__ in _KINDS:
        return True
    # Not by the text of just any error: a message of ours may quote the name of a file.
    text = str(error).lower()
    told = any(word in text for word in _WORDS)
    return told and (library or isinstance(error, RuntimeError))


def as_machine_error(error: Exception, doing: str) -> MachineError:
    """Return the error itself where it is a `MachineError`, else one to raise from it.

    Args:
        error: one that `is_machine_error` knows, or one that can only be the machine's.
        doing: what was being done, such as "reading frames".

    """
    if isinstance(error, MachineError):
        return error
    return MachineError(f"{doing}: {first_line(error)} (this machine's fault, not the frame's)")
