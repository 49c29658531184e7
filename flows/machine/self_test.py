"""Whether this machine works, and what can label on it: `python -m flows.machine.self_test`.

In a process of its own, before a worker takes work: one that finds its device, its folders or its
memory sick takes none. Its one argument, a JSON object, names folders of storages (`read`,
`written`) that failed a flow run. It prints one JSON object, `offers` (backends, best first) and
`problem` ("" where there is none).

Only what is the machine's counts: a file that is missing, or that its own disk cannot read any
more while others can be read, is no reason to stop.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.machine.notes import NOTHING, Note
from sam2_core.cache import cache_folder, make_folder
from sam2_core.machine_errors import first_line, is_machine_error

LIMIT_S = 180.0
WRITTEN_BYTES = 16 << 20
LEAST_MEMORY_BYTES = 512 << 20
MOST_SAMPLES = 8


@dataclass(frozen=True)
class Verdict:
    """What a self-test found.

    Attributes:
        offers: backends that can label here, as stamps name them, best first.
        problem: why nothing can, "" where something can.

    """

    offers: tuple[str, ...]
    problem: str = ""

    @staticmethod
    def parse(printed: str, exit_code: int) -> Verdict:
        """Read what the process printed; one that died is a problem, too."""
        try:
            found = json.loads(printed.strip().splitlines()[-1])
            return Verdict(tuple(found["offers"]), str(found["problem"]))
        except (ValueError, KeyError, IndexError, TypeError):
            if exit_code == -signal.SIGKILL:
                return Verdict((), "its self-test was killed: it hangs, or memory is short")
            return Verdict((), f"its self-test ended with exit code {exit_code} and said nothing")


def command(note: Note = NOTHING) -> list[str]:
    """Return how to run it in a process of its own, after what a flow run has noted."""
    storages = {"read": note.read, "written": note.written}
    return [sys.executable, "-m", "flows.machine.self_test", json.dumps(storages)]


def self_test(environment: Mapping[str, str] = os.environ, note: Note = NOTHING) -> Verdict:
    """Test the machine, and the device that this process was given.

    Without a device the CPU offers what it has.

    Args:
        environment: names the device.
        note: names the storages that a flow run worked with when this machine failed.

    """
    from sam2_core.backend_choice import cuda_devices, offered_backends

    if problem := host_problem(note.read, note.written):
        return Verdict((), problem)
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if not wanted:
        return Verdict(("onnxruntime-cpu",))
    if not cuda_devices():
        return Verdict((), f"the driver shows no GPU {wanted}: see `nvidia-smi -L`")
    offers = tuple(one for one in offered_backends() if one != "onnxruntime-cpu")
    if not offers:
        from sam2_core.backend_choice import cuda_provider_problem

        return Verdict((), f"GPU {wanted} is there, but {cuda_provider_problem()}")
    try:
        problem = _torch_problem() if offers == ("torch",) else _device_problem()
    except Exception as error:  # noqa: BLE001 - whatever it is, this device is not to be used
        problem = f"its device failed: {first_line(error)}"
    return Verdict(() if problem else offers, problem)


def _torch_problem() -> str:
    """Let PyTorch compute something that is known; all that it needs of a device but itself."""
    import torch

    count = 1 << 20
    found = int(torch.arange(count, device="cuda").sum().item())
    right = count * (count - 1) // 2
    return "" if found == right else f"its device computes wrong results: {found}, not {right}"


def _device_problem() -> str:
    """Write to the device, let it compute, and read back what must be there."""
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
    apart = float(np.abs(host.transpose(1, 2, 0) - resize_square(image, size)).max())
    return "" if apart < 0.01 else f"its device computes wrong results: off by {apart:.3f}"


def host_problem(read: Iterable[str] = (), written: Iterable[str] = ()) -> str:
    """Return why this machine cannot work, besides its device; "" where nothing is found.

    Args:
        read: folders of storages of this machine, where something has to be readable.
        written: folders of storages of this machine that have to be writable.

    """
    for own in (Path(os.environ.get("TMPDIR") or tempfile.gettempdir()), cache_folder()):
        try:
            make_folder(own)
            _write_and_read(own)
        except OSError as error:
            return f"{own} cannot be written and read back: {error.strerror or error}"
    if problem := _memory_short():
        return problem
    for folder in map(Path, written):
        try:
            if folder.is_dir():
                _write_and_read(folder)
        except OSError as error:
            if is_machine_error(error):
                return f"{folder} cannot be written and read back: {error.strerror or error}"
    return next(filter(None, map(_unreadable, map(Path, read))), "")


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


def _memory_short() -> str:
    """Look, and take none: what asks for more than there is may be the end of others."""
    import psutil

    free = psutil.virtual_memory().available
    if free >= LEAST_MEMORY_BYTES:
        return ""
    return f"memory is short: {free >> 20} MB are free, {LEAST_MEMORY_BYTES >> 20} MB are needed"


def _unreadable(folder: Path) -> str:
    """Say why nothing that is looked at in a folder can be read; one thing that can is enough."""
    problem = ""
    try:
        for file in itertools.islice(_files(folder), MOST_SAMPLES):
            try:
                with file.open("rb") as opened:
                    opened.read(1)
            except OSError as error:
                if not is_machine_error(error):
                    return ""
                problem = f"nothing in {folder} can be read: {error.strerror or error}"
            else:
                return ""
    except OSError as error:  # the folder itself
        return f"nothing in {folder} can be read: {error.strerror}" * is_machine_error(error)
    return problem


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
    try:
        found = self_test(note=Note(**json.loads(sys.argv[1])) if sys.argv[1:] else NOTHING)
    except Exception as error:  # noqa: BLE001 - the answer, not a trace
        found = Verdict((), f"{type(error).__name__}: {first_line(error)}")
    print(json.dumps({"offers": found.offers, "problem": found.problem}))  # noqa: T201
    raise SystemExit(1 if found.problem else 0)


if __name__ == "__main__":
    main()
