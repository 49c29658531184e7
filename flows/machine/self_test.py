"""Whether this machine works, and what can label on it: `python -m flows.machine.self_test`.

Before a worker takes work: one that finds its device, its folders or its memory sick takes none. A
GPU is tested in a process of its own, this one: the last line that it prints is what can label
here, best first, + between; with exit code 1 it is the problem.

Only what is the machine's counts: storage that fails is no reason to stop.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

from sam2_core.cache import cache_folder, make_folder
from sam2_core.machine_errors import first_line
from sam2_core.types import AutolabelError
from tasks.processes import WORKER_VARIABLE

LIMIT_S = 180.0
WRITTEN_BYTES = 16 << 20
LEAST_MEMORY_BYTES = 512 << 20
FAILED = signal.SIGUSR1  # what a worker gets from a flow run under whose hands the machine failed


def have_tested() -> None:
    """Have the worker of this flow run end, and this machine tested before it takes more."""
    if worker := os.environ.get(WORKER_VARIABLE):
        os.kill(int(worker), FAILED)


def device_offers() -> tuple[str, ...]:
    """Test the GPU that this process sees; returns what can label with it, best first.

    Raises:
        AutolabelError: the device is not there, does not work, or nothing can use it.

    """
    from sam2_core.backend_choice import cuda_provider_problem, offered_backends
    from sam2_core.devices import cuda_devices

    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    if not cuda_devices():
        raise AutolabelError(f"the driver shows no GPU {gpu}: see `nvidia-smi -L`")
    offers = tuple(backend for backend in offered_backends() if backend != "onnxruntime-cpu")
    if not offers:
        raise AutolabelError(f"GPU {gpu} is there, but {cuda_provider_problem()}")
    try:
        off_by = _torch_error() if offers == ("torch",) else _device_error()
    except Exception as error:
        raise AutolabelError(f"GPU {gpu} failed: {first_line(error)}") from error
    if off_by > 0.01:
        raise AutolabelError(f"GPU {gpu} computes wrong results: off by {off_by:.3f}")
    return offers


def _torch_error() -> float:
    """Let PyTorch compute something that is known; all that it needs of a device but itself."""
    import torch

    return abs(int(torch.arange(1000, device="cuda").sum()) - 499_500)


def _device_error() -> float:
    """Write to the device, let it compute, and compare with what must come of it."""
    import numpy as np

    from sam2_core.backends.gpu import process_gpu
    from sam2_core.preprocess import resize_square

    gpu = process_gpu()
    image = np.random.default_rng(0).integers(0, 256, (90, 160, 3)).astype(np.uint8)
    size = 64
    view = gpu.stage(image).whole()

    def work() -> np.ndarray:
        target = gpu.memory(3 * size * size * 4)
        kept = gpu.squares([view], target.address, size)
        squares = gpu.download(target.address, np.float32, (3, size, size))
        gpu.device.synchronize(gpu.stream)
        del kept
        return squares

    squares = gpu.run(work)
    return float(np.abs(squares.transpose(1, 2, 0) - resize_square(image, size)).max())


def check_host() -> None:
    """Test what this machine needs besides its device.

    Raises:
        AutolabelError: something fails; says what.

    """
    for folder in (Path(os.environ.get("TMPDIR") or tempfile.gettempdir()), cache_folder()):
        try:
            make_folder(folder)
            with tempfile.TemporaryFile(prefix=".self-test-", suffix=".tmp", dir=folder) as file:
                file.write(os.urandom(WRITTEN_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise AutolabelError(
                f"{folder} cannot be written: {error.strerror or error}"
            ) from error
    import psutil

    # Looked at, not taken: what asks for more than there is may be the end of others.
    free = psutil.virtual_memory().available
    if free < LEAST_MEMORY_BYTES:
        raise AutolabelError(
            f"memory is short: {free >> 20} MB are free, {LEAST_MEMORY_BYTES >> 20} MB are needed"
        )


def main() -> None:
    """Run the test."""
    try:
        check_host()
        offers = device_offers()
    except Exception as error:  # noqa: BLE001 - the answer, not a trace
        sys.exit(first_line(error))
    print("+".join(offers))  # noqa: T201


if __name__ == "__main__":
    main()
