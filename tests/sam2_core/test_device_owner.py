"""One owner of the device: work in order on one thread, captures alone, nothing after a loss."""

import threading
from unittest.mock import Mock

import pytest

from sam2_core.backends.device_owner import DeviceOwner
from sam2_core.types import AutolabelError, DeviceLostError, MachineError


def test_all_work_is_done_by_one_thread_in_order():
    owner, order = DeviceOwner(), []

    def work(number):
        order.append((number, threading.get_ident()))

    for number in range(8):
        thread = threading.Thread(target=owner.run, args=(lambda n=number: work(n),))
        thread.start()
        thread.join()
    assert [n for n, _ in order] == list(range(8))
    assert len({ident for _, ident in order}) == 1
    # From its own thread it does not wait for itself.
    assert owner.run(lambda: owner.run(lambda: 7)) == 7


def test_nobody_waits_for_the_device_while_a_graph_is_captured():
    owner, seen = DeviceOwner(), []
    waiting, release, inside = threading.Event(), threading.Event(), threading.Event()

    def wait():
        waiting.set()
        release.wait(10)
        seen.append("waited")

    def capture():
        with owner.capturing():
            seen.append("captured")
            inside.set()
            later.start()
            later.join(0.1)
            seen.append("still captured")

    first = threading.Thread(target=owner.wait, args=(wait,))
    later = threading.Thread(target=owner.wait, args=(lambda: seen.append("waited later"),))
    first.start()
    waiting.wait(10)
    capturing = owner.submit(capture)
    assert not inside.wait(0.05)  # the one who waits is waited for
    release.set()
    capturing.result(10)
    later.join(10)
    assert seen == ["waited", "captured", "still captured", "waited later"]


STICKY = [
    "CUDA: cudaStreamSynchronize failed with cudaErrorIllegalAddress",
    "CUDA error: an illegal memory access was encountered",
    "CUDA failure 700: an illegal memory access was encountered ; GPU=0",
    "CUDA failure 719: unspecified launch failure",
    "CUDA: cudaLaunchKernel failed with cudaErrorECCUncorrectable",
    "CUDA: cudaMemcpyAsync failed with cudaErrorContained",
    "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
    "CUDA failure 100: no CUDA-capable device is detected ; GPU=0",
    "CUDA: cudaMalloc failed with cudaErrorNoDevice",
    "CUDA: cudaStreamSynchronize failed with cudaErrorSystemNotReady",
    "CUDA error: system not yet initialized",
    "CUDA error: device-side assert triggered",
]
# What PyTorch adds to every error of CUDA.
ADVICE = """
Search for `cudaError...' in https://docs.nvidia.com/cuda/cuda-runtime-api/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below
might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize("text", [*STICKY, STICKY[1] + ADVICE])
def test_after_a_sticky_error_nothing_is_asked_of_the_device(text):
    owner, asked = DeviceOwner(), []
    with pytest.raises(DeviceLostError, match="the GPU is lost to this process"):
        owner.run(Mock(side_effect=RuntimeError(text)))
    assert isinstance(owner.lost, MachineError)
    with pytest.raises(DeviceLostError):
        owner.run(lambda: asked.append(1))
    with pytest.raises(DeviceLostError):
        owner.wait(lambda: asked.append(1))
    assert asked == []


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a frame of no pixels, in a folder named unknown error"),
        RuntimeError("CUDA out of memory"),
        RuntimeError("CUDA failure 900: operation not permitted when capturing"),
        RuntimeError("CUDA graphs need a self-contained model"),
        AutolabelError("no NVIDIA GPU is usable here (cudaErrorNoDevice)"),
        *(RuntimeError(f"CUDA error: {reason}{ADVICE}") for reason in (
            "out of memory", "invalid configuration argument", "no kernel image"
        )),
    ],
)  # fmt: skip
def test_other_errors_are_no_loss(error):
    owner = DeviceOwner()
    with pytest.raises(type(error)):
        owner.run(Mock(side_effect=error))
    assert owner.lost is None
    assert owner.run(lambda: 1) == 1
