"""What is free of the one device that a process was given."""

import ctypes
import shutil
import subprocess

import pytest

from tasks.pipeline.device_memory import free_device_memory_bytes

# A stand-in for the driver's library: one GPU, one MIG device.
FAKE_NVML = r"""
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
static int gpu, mig;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = &gpu;
    return index != 3;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = strncmp(uuid, "MIG", 3) ? &gpu : &mig;
    return strcmp(uuid, "GPU-7") && strcmp(uuid, "MIG-aa");
}
int nvmlDeviceGetMemoryInfo(void *handle, memory *found) {
    found->free = (handle == &mig ? 5ull : 100ull) << 30;
    return 0;
}
"""


@pytest.fixture(scope="module")
def fake_nvml(tmp_path_factory):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler for a stand-in of the driver's library")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(FAKE_NVML)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "nvml.c"], check=True)
    return library


@pytest.mark.parametrize(
    ("visible", "memory"),
    [
        ("3", 100 << 30),
        ("GPU-7", 100 << 30),
        ("MIG-aa", 5 << 30),
        ("4", 0),
        ("MIG-bb", 0),
        ("GPU-7,3", 0),
        ("", 0),
    ],
)
def test_the_memory_of_one_device_is_asked_of_the_driver(visible, memory, fake_nvml, monkeypatch):
    real = ctypes.CDLL
    monkeypatch.setattr(
        ctypes, "CDLL", lambda name: real(str(fake_nvml) if name == fake_nvml.name else name)
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert free_device_memory_bytes() == memory


def test_without_the_drivers_library_nothing_is_known_to_be_free(monkeypatch):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert free_device_memory_bytes() == 0
