"""An artifact of PyTorch's ahead-of-time compiler in memory, and what its errors mean."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch

from sam2_core.backends.device_owner import is_sticky
from sam2_core.backends.torch_captured import Tensors
from sam2_core.machine_errors import names_machine_errno
from sam2_core.types import AutolabelError


class UnusableError(Exception):
    """An artifact is not there, or cannot be loaded."""


class UntriedError(AutolabelError):
    """An artifact was not tried to an end, for want of what is the machine's: it may be sound."""


# Of what CUDA and PyTorch's loader say, what no code in an artifact can cause. The loader says of a
# full disk that its callback failed.
_OF_MACHINE = (
    "out of memory", "alloc_failed", "bad_alloc", "can't start new thread",
    "no cuda-capable device",
    "busy or unavailable", "uncorrectable", "nvlink", "not yet initialized", "initialization error",
    "fell off the bus", "driver version", "unsupported display driver", "unknown error",
    "write callback failed", "generating temporary directory",
)  # fmt: skip


def is_of_machine(text: str, path: Path) -> bool:
    """Whether an artifact failed, with these words, for want of what is the machine's."""
    if any(word in text.lower() for word in _OF_MACHINE) or names_machine_errno(text):
        return True
    try:  # it is unpacked there
        return shutil.disk_usage(tempfile.gettempdir()).free < path.stat().st_size
    except OSError:
        return False


def constants_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's parameters and buffers, one that has several names under each of them."""
    parameters = module.named_parameters(remove_duplicate=False)
    return dict(parameters) | dict(module.named_buffers(remove_duplicate=False))


def _released(aliases: list[torch.Tensor]) -> None:
    for alias in aliases:
        alias.set_()


def mapped_files() -> list[str]:
    """Return the files, libraries among them, that this process has mapped; none where unknown."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    return [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6]


def _unpacked(name: str) -> set[Path]:
    """Return where artifacts of a name were unpacked that this process has loaded."""
    inside = f"/{name}/data/aotinductor/"
    return {Path(path.partition(inside)[0]) for path in mapped_files() if inside in path}


class LoadedArtifact:
    """An artifact in memory, working on a module's weights (`constants_of`) where they lie."""

    def __init__(self, path: Path, own: Mapping[str, torch.Tensor], device: torch.device) -> None:
        # What `torch._inductor.aoti_load_package` ends in, which imports the compiler before.
        # Single-threaded: no events of its own, which could not be captured in a CUDA graph.
        index = torch.cuda.current_device() if device.type == "cuda" else -1
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, index)
        names = self._loader.get_constant_fqns()
        if not own.keys() >= {*names}:
            unknown = ", ".join(sorted({*names} - own.keys()))
            raise RuntimeError(f"the module has no parameters or buffers {unknown}")
        # The loader never lets go of tensors that it does not own. It is given others over the same
        # memory, which are emptied when this object goes: the weights are then free.
        aliases = {}
        for name in names:
            given = own[name].detach()
            aliases[name] = torch.empty(0, dtype=given.dtype, device=given.device).set_(given)
        self._loader.load_constants(aliases, False, True, True)
        self._own, self._name = own, path.stem
        gone = weakref.finalize(self, _released, list(aliases.values()))
        gone.atexit = False

    def remove_unpacked(self) -> None:
        """Remove what the loader has unpacked; call it after a first run, which loads all of it.

        The loader does so when it goes, but processes are killed, and those that share a GPU leave
        without ending what they hold.
        """
        for folder in _unpacked(self._name):
            shutil.rmtree(folder / self._name, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Compute what the module does.

        Raises:
            torch.OutOfMemoryError: the device's memory does not suffice.

        """
        on_gpu = inputs[0].is_cuda
        before = _out_of_memory_count(on_gpu)
        try:
            return tuple(self._loader.run(list(inputs)))
        except RuntimeError as error:
            # The loader says where it failed, not of what.
            if _out_of_memory_count(on_gpu) > before:
                raise torch.OutOfMemoryError("out of memory in a compiled module") from error
            if on_gpu and not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()  # raises the device's own error, if there is one
            raise


def _out_of_memory_count(on_gpu: bool) -> int:
    return int(torch.cuda.memory_stats().get("num_ooms", 0)) if on_gpu else 0


def raise_of_device(error: BaseException) -> None:
    """Raise what another way of compiling would not mend: no memory, or a device that is lost."""
    cause: BaseException | None = error
    seen: set[int] = set()  # as in `causes`, which does not follow contexts
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause
        cause = cause.__cause__ or cause.__context__
    # These two may have lost another process its device, in a trial; not this one.
    if not isinstance(error, (UnusableError, UntriedError)) and is_sticky(error):
        raise error
