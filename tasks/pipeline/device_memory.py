"""What is free of a GPU's memory, asked of the driver's management library."""

from __future__ import annotations

import ctypes
import os


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`, in bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def free_device_memory_bytes() -> int:
    """Return what is free of this process's only GPU or MIG device; 0 where nothing tells.

    `CUDA_VISIBLE_DEVICES` has to name it: by its place on the bus, as `nvidia-smi` counts, or by
    its whole UUID. CUDA itself would have to begin to use it.
    """
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not device or "," in device:
        return 0
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    if library.nvmlInit_v2():
        return 0
    try:
        return _free_bytes(library, device)
    finally:
        library.nvmlShutdown()


def _free_bytes(library: ctypes.CDLL, device: str) -> int:
    handle, memory = ctypes.c_void_p(), _Memory()
    if device.isdecimal():
        failed = library.nvmlDeviceGetHandleByIndex_v2(int(device), ctypes.byref(handle))
    else:
        failed = library.nvmlDeviceGetHandleByUUID(device.encode(), ctypes.byref(handle))
    if failed or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return 0
    return int(memory.free)
