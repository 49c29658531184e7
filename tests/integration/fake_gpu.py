"""A fake GPU for every process of a worker: host memory behind the product's own device code.

Its kernels are compiled for the host, so a C++ compiler has to be here.

`sitecustomize` below lets a worker's self-tests, flow runs and device processes use it. In the
folder `$FAKE_GPU` a file `breaks` lets the first device process that has worked a while lose its
device as by a poisoned context, and from then on every process that opens it, for as long as a
file `sick` lies there.
"""

import contextlib
import functools
import os
from pathlib import Path

from sam2_core import backend_choice
from sam2_core.backends import gpu, onnxruntime_cuda
from sam2_core.backends.device_owner import device_owner
from sam2_core.types import MachineError
from tests.sam2_core.host_device import HostDevice

SITECUSTOMIZE = """
import os, sys
words = " ".join(sys.orig_argv)
if "FAKE_GPU" in os.environ and any(
    one in words for one in ("self_test", "prefect.engine", "spawn_main")
):
    import tests.integration.fake_gpu
"""
FOLDER = Path(os.environ.get("FAKE_GPU", "."))
SICK = FOLDER / "sick"
WORKS_FOR = 40  # copies


class FakeGpuDevice(HostDevice):
    """Host memory that can be lost."""

    name = "fake GPU"

    def __init__(self):
        super().__init__()
        self.answer("cudaSetDevice", "cudaErrorDevicesUnavailable")

    def answer(self, call, error):
        if SICK.exists():
            raise MachineError(f"CUDA: {call} failed with {error}")

    def copy(self, *arguments):
        if len(self.copied_bytes) >= WORKS_FOR:
            with contextlib.suppress(OSError):
                (FOLDER / "breaks").rename(SICK)
        self.answer("cudaMemcpyAsync", "cudaErrorIllegalAddress")
        super().copy(*arguments)


@functools.cache
def process_gpu():
    """The process's one device, on its owner's thread."""
    owner = device_owner()
    return owner.run(lambda: gpu.Gpu(FakeGpuDevice(), owner, "cpu"))


class OnFakeGpu(onnxruntime_cuda.OnnxRuntimeCudaBackend):
    """The product's backend; ONNX Runtime computes on the CPU."""

    def __init__(self, folder):
        super().__init__(folder, process_gpu(), ["CPUExecutionProvider"])


if "FAKE_GPU" in os.environ:
    backend_choice.cuda_devices = lambda: 1
    backend_choice.cuda_provider_problem = functools.cache(lambda: "")
    backend_choice.ON_GPU = {"onnxruntime-cuda": "a fake"}
    gpu.process_gpu = process_gpu
    onnxruntime_cuda.OnnxRuntimeCudaBackend = OnFakeGpu
