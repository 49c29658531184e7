"""Host memory in place of a GPU's, and kernels compiled for the host.

Copies happen at once. The kernels are the device's own source, compiled by the system's C++
compiler behind a few lines that stand for CUDA, and run for one thread after another.
"""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from sam2_core.backends.device_owner import DeviceOwner
from sam2_core.backends.gpu import Gpu
from sam2_core.types import DeviceMemoryError

_SHIM = """
#include <cmath>
#define __global__
#define __device__ static
struct Dim { int x, y, z; };
static int atomicAdd(int* to, int more) { int was = *to; *to += more; return was; }
static thread_local Dim blockIdx, threadIdx, blockDim, gridDim;
"""
_CALLS = """
extern "C" void run_squares(int bx, int by, int bz, int tx, int ty, const View* views, float* out,
                            int size) { ALL(squares(views, out, size)); }
extern "C" void run_letterboxes(int bx, int by, int bz, int tx, int ty, const View* views,
                                const int* places, float* out, int w, int h) {
    ALL(letterboxes(views, places, out, w, h)); }
extern "C" void run_likely(int bx, int by, int bz, int tx, int ty, const float* rows, int cells,
                           int columns, float least, int most, int* counts, float* picked) {
    ALL(likely(rows, cells, columns, least, most, counts, picked)); }
"""
_LOOP = """
#define ALL(call) blockDim = {tx, ty, 1}; \\
    for (int z = 0; z < bz; ++z) for (int y = 0; y < by; ++y) for (int x = 0; x < bx; ++x) \\
    for (int j = 0; j < ty; ++j) for (int i = 0; i < tx; ++i) { \\
        blockIdx = {x, y, z}; threadIdx = {i, j, 0}; call; }
"""


@functools.cache
def compiled_for_host(source: str) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    with tempfile.TemporaryDirectory() as folder:  # once loaded it needs its file no longer
        code, library = Path(folder) / "pixels.cpp", Path(folder) / "pixels.so"
        code.write_text(_SHIM + source + _LOOP + _CALLS)
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(code)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))


class HostDevice:
    """Memory that is counted and checked, and may be too little."""

    name = "host memory"

    def __init__(self, memory_bytes: int = 1 << 40):
        self.blocks: dict[int, tuple[object, int]] = {}
        self.left = memory_bytes
        self.copied_bytes = []

    def allocate(self, nbytes):
        if nbytes > self.left:
            raise DeviceMemoryError("host device: out of memory")
        self.left -= nbytes
        return self._block(nbytes)

    def _block(self, nbytes):
        block = (ctypes.c_uint8 * (nbytes + 64))()
        ctypes.memset(block, 0xEE, nbytes)  # garbage, as on a device
        address = (ctypes.addressof(block) + 63) // 64 * 64
        self.blocks[address] = (block, nbytes)
        return address

    def release(self, address):
        self.left += self.blocks.pop(address)[1]

    def allocate_pinned(self, nbytes):
        return self._block(nbytes)

    def release_pinned(self, address):
        del self.blocks[address]

    def create_stream(self):
        return 1

    def _inside(self, address, nbytes):
        assert any(a <= address and address + nbytes <= a + n for a, (_, n) in self.blocks.items())

    def copy(self, target, source, nbytes, stream):
        self._inside(target, nbytes)
        self._inside(source, nbytes)
        ctypes.memmove(target, source, nbytes)
        self.copied_bytes.append(nbytes)

    def clear(self, address, nbytes, stream):
        self._inside(address, nbytes)
        ctypes.memset(address, 0, nbytes)

    def synchronize(self, stream):
        pass

    def record(self, stream):
        return self

    def wait(self):
        pass

    def done(self):
        return True

    def compile(self, source, names):
        library = compiled_for_host(source)
        return {name: getattr(library, f"run_{name}") for name in names}

    def run_kernel(self, kernel, blocks, threads, arguments, stream):
        sizes = [ctypes.c_int(n) for n in (*blocks, *threads[:2])]
        kernel(*sizes, *(kind(value) for value, kind in arguments))


def host_gpu(memory_bytes: int = 1 << 40) -> Gpu:
    return Gpu(HostDevice(memory_bytes), DeviceOwner("host-device"), "cpu")
