"""Whether this machine works, and what can label on it: `python -m flows.machine.self_test`.

In a process of its own, before a worker takes work: one that finds its device, its folders or its
memory sick takes none. Its one argument, a note as JSON, names folders of storages (`read`,
`written`) that failed a flow run. The last line that it prints is what can label here, best first,
+ between; with exit code 1 it is the problem.

Only what is the machine's counts: a file that is missing, or that its own disk cannot read any
more while others can be read, is no reason to stop.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from flows.machine.notes import Note
from flows.machine.programs import python
from sam2_core.cache import cache_folder, make_folder
from sam2_core.machine_errors import first_line, is_machine_error
from sam2_core.types import AutolabelError

LIMIT_S = 180.0
WRITTEN_BYTES = 16 << 20
LEAST_MEMORY_BYTES = 512 << 20
MOST_SAMPLES = 8


def command(note: Note) -> list[str]:
    """Return how to run it in a process of its own, after what a flow run has noted."""
    return [*python("flows.machine.self_test"), json.dumps(asdict(note))]


def device_offers() -> tuple[str, ...]:
    """Test the device that this process sees; returns what can label with it, best first.

    Without a device the CPU offers what it has.

    Raises:
        AutolabelError: the device is not there, does not work, or nothing can use it.

    """
    from sam2_core.backend_choice import cuda_devices, cuda_provider_problem, offered_backends

    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not gpu:
        return ("onnxruntime-cpu",)
    if not cuda_devices():
        raise AutolabelError(f"the driver shows no GPU {gpu}: see `nvidia-smi -L`")
    offers = tuple(one for one in offered_backends() if one != "onnxruntime-cpu")
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

    count = 1 << 20
    found = int(torch.arange(count, device="cuda").sum().item())
    return abs(found - count * (count - 1) // 2)


def _device_error() -> float:
    """Write to the device, let it compute, and compare with what must come of it."""
    import numpy as np

    from sam2_core.backends.gpu import process_gpu
    from sam2_core.preprocess import resize_square

    gpu = process_gpu()
    image = np.random.default_rng(0).integers(0, 256, (90, 160, 3)).astype(np.uint8)
    size = 64
    view = gpu.stage(image).whole()
    target = gpu.run(lambda: gpu.memory(3 * size * size * 4))
    host = gpu.pinned(3 * size * size * 4).as_array(np.float32, (3, size, size))

    def work() -> None:
        kept = gpu.squares([view], target.address, size)
        gpu.device.copy(host.ctypes.data, target.address, host.nbytes, gpu.stream)
        gpu.device.synchronize(gpu.stream)
        del kept

    gpu.run(work)
    return float(np.abs(host.transpose(1, 2, 0) - resize_square(image, size)).max())


def check_host(read: Iterable[str] = (), written: Iterable[str] = ()) -> None:
    """Test what this machine needs besides its device.

    Args:
        read: folders of storages of this machine, where something has to be readable.
        written: folders of storages of this machine that have to be writable.

    Raises:
        AutolabelError: something fails; says what.

    """
    own = [Path(os.environ.get("TMPDIR") or tempfile.gettempdir()), cache_folder()]
    for folder in [*own, *map(Path, written)]:
        try:
            if folder in own:
                make_folder(folder)
            if folder.is_dir():
                _write_and_read(folder)
        except OSError as error:
            if folder in own or is_machine_error(error):
                why = f"{folder} cannot be written and read back: {error.strerror or error}"
                raise AutolabelError(why) from error
    _refuse_short_memory()
    for folder in map(Path, read):
        try:
            _read_something(folder)
        except OSError as error:
            if is_machine_error(error):
                why = f"nothing in {folder} can be read: {error.strerror or error}"
                raise AutolabelError(why) from error


def _write_and_read(folder: Path) -> None:
    data = os.urandom(1 << 20)
    with tempfile.TemporaryFile(prefix=".self-test-", suffix=".tmp", dir=folder) as file:
        for _ in range(WRITTEN_BYTES // len(data)):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        while part := file.read(len(data)):
            if part != data:
                raise OSError(errno.EIO, "what is read back is not what was written")


def _refuse_short_memory() -> None:
    """Look, and take none: what asks for more than there is may be the end of others."""
    import psutil

    free = psutil.virtual_memory().available
    if free < LEAST_MEMORY_BYTES:
        raise AutolabelError(
            f"memory is short: {free >> 20} MB are free, {LEAST_MEMORY_BYTES >> 20} MB are needed"
        )


def _read_something(folder: Path) -> None:
    """Read a byte of one of the first files; raises where none of them can be read."""
    problem: OSError | None = None
    for file in itertools.islice(_files(folder), MOST_SAMPLES):
        try:
            with file.open("rb") as opened:
                opened.read(1)
        except OSError as error:
            problem = error
        else:
            return
    if problem:
        raise problem


def _files(folder: Path) -> Iterator[Path]:
    """Yield a folder's files, and those of the folders in it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path))
            else:
                yield Path(entry.path)


def main() -> None:
    """Run the test."""
    note = Note(**json.loads(sys.argv[1]))
    try:
        check_host(note.read, note.written)
        offers = device_offers()
    except Exception as error:  # noqa: BLE001 - the answer, not a trace
        sys.exit(first_line(error))
    print("+".join(offers))  # noqa: T201


if __name__ == "__main__":
    main()
