"""NVIDIA GPUs as the driver shows them to this process."""

import ctypes
import os

from sam2_core.types import DeviceLostError

# Backends that the parent process has seen working on its device, with commas between.
TESTED_VARIABLE = "AUTOLABEL_TESTED_BACKENDS"


def cuda_devices() -> int:
    """Return the number of NVIDIA GPUs that the driver shows to this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def refuse_if_gone(devices: int | None = None) -> None:
    """Refuse to go on without the GPU that worked when the parent process tested it.

    Args:
        devices: how many can be used now; None: the driver is asked.

    Raises:
        DeviceLostError: none, and there was one.

    """
    if not os.environ.get(TESTED_VARIABLE):
        return
    if not (cuda_devices() if devices is None else devices):
        raise DeviceLostError(
            "the GPU that worked when it was tested is gone: this process can use none. "
            "`nvidia-smi -L` and the kernel's log (dmesg, Xid) say more"
        )


def no_gpu() -> str:
    """Say that CUDA_VISIBLE_DEVICES names no GPU of this machine; "" where that is not so.

    Empty and -1 hide every GPU on purpose.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not named.strip() or named.strip() == "-1" or cuda_devices():
        return ""
    return f"CUDA_VISIBLE_DEVICES={named} names no GPU here, so the processor is used"


def device_memory_bytes() -> int:
    """Return the memory of the first GPU that this process sees; 0 where it sees none."""
    if not cuda_devices():
        return 0
    driver = ctypes.CDLL("libcuda.so.1")
    device, size = ctypes.c_int(0), ctypes.c_size_t(0)
    failed = driver.cuDeviceGet(ctypes.byref(device), 0)
    return 0 if failed or driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) else size.value


def compute_capability() -> str:
    """Return the compute capability of the first GPU, such as sm89; "" where there is none."""
    if not cuda_devices():
        return ""
    driver, numbers = ctypes.CDLL("libcuda.so.1"), (ctypes.c_int(0), ctypes.c_int(0))
    for attribute, number in zip((75, 76), numbers, strict=True):  # major, minor
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, 0)
    return "sm" + "".join(str(number.value) for number in numbers)
