"""Modules compiled ahead of time by PyTorch (AOTInductor), kept in the cache folder.

`torch.compile` traces in every process, half a minute before the first frame. An artifact is traced
once on a machine, for one module and one shape of its inputs, and loaded in milliseconds, without
importing the compiler. It holds no weights: those of the module are handed to it, so all shapes
share one copy on the device, and other weights of the same architecture need no compilation.

An artifact's name tells everything that it depends on (device, versions, code, model, shapes), and
is known without tracing. Processes that start together on an empty cache wait for the one that
compiles. Where it cannot be compiled ahead, modules are compiled by `torch.compile`, as told once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from sam2_core.backends.torch_artifact import (
    LoadedArtifact,
    UntriedError,
    UnusableError,
    constants_of,
    is_of_machine,
    raise_of_device,
)
from sam2_core.backends.torch_captured import Tensors
from sam2_core.backends.torch_toolchain import libraries_to_link, need_compilers
from sam2_core.backends.torch_trial import need_sound
from sam2_core.cache import only_one, write_whole
from sam2_core.decisive_code import ROOT, source_digest
from sam2_core.library_messages import quiet_torch_compiler
from sam2_core.machine_errors import first_line

logger = logging.getLogger(__name__)

Function = Callable[..., Tensors]

_OPTIONS = {
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,  # small ones too would become a part of the code
}
# Code that is traced, beside all of the architecture, and what artifacts are linked with.
_TRACED = ("sam2_core.backends.torch_modules", "sam2_core.backends.torch_toolchain")


def _versions() -> dict[str, str]:
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for name in ("triton", "pytorch-triton"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _device_facts(device: torch.device) -> str:
    if device.type != "cuda":
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    about = torch.cuda.get_device_properties(device)
    return f"{about.name} {about.major}.{about.minor} {about.multi_processor_count}"


def _traced_code() -> str:
    architecture = (ROOT / "sam2_core" / "architecture").glob("*.py")
    names = (f"sam2_core.architecture.{path.stem}" for path in architecture)
    return source_digest((*sorted(names), *_TRACED))


def _layout(tensors: Iterable[torch.Tensor]) -> list[str]:
    return [f"{tuple(t.shape)} {t.stride()} {t.dtype} {t.device.type}" for t in tensors]


class CompiledModules:
    """A model's modules, compiled ahead of time for the shapes that they are asked for.

    Args:
        folder: where artifacts are kept, a part of the cache folder.
        about: what the compiled code depends on that no shape tells, such as the model's preset.
        device: where the modules are.

    """

    def __init__(self, folder: Path, about: Mapping[str, str], device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._facts = {
            "options": str(_OPTIONS), "device": _device_facts(device), "code": _traced_code(),
            "float32": torch.get_float32_matmul_precision(), **_versions(), **about,
        }  # fmt: skip
        self._told, self._impossible = False, False

    def artifact(self, name: str, module: torch.nn.Module, inputs: Tensors) -> Path:
        """Return where the artifact of a module for inputs of these shapes is, or would be."""
        constants = sorted(constants_of(module).items())
        parts = {type(part) for part in module.modules()}
        facts = self._facts | {
            "inputs": ", ".join(_layout(inputs)),
            "parts": ", ".join(sorted(f"{part.__module__}.{part.__qualname__}" for part in parts)),
            "constants": ", ".join(f"{key} {_layout([value])[0]}" for key, value in constants),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]
        return self._folder / f"{name}-{digest}.pt2"

    def known(self, name: str, module: torch.nn.Module, inputs: Tensors) -> bool:
        """Whether `function` need not find out first what these shapes are compiled to."""
        path = self.artifact(name, module, inputs)
        return path.exists() or _refused_file(path).exists()

    def function(self, name: str, module: torch.nn.Module, inputs: Tensors) -> Function:
        """Return a function that computes what a module does, for inputs of these shapes.

        Args:
            name: of the module, for messages and the artifact's name.
            module: in evaluation mode on the device.
            inputs: examples of its inputs, on the device.

        Raises:
            torch.OutOfMemoryError: the device's memory does not suffice.

        """
        if self._impossible:
            return self._compiled_in_process(module)
        path = self.artifact(name, module, inputs)
        try:
            if _refused_file(path).exists():
                raise UnusableError(_refused_file(path).read_text())
            with contextlib.suppress(UnusableError):
                return self._loaded(path, module, inputs)
            with only_one(path.with_name(f".{path.name}.lock"), _waiting):
                return self._made(name, path, module, inputs)
        except Exception as error:
            raise_of_device(error)
            self._impossible = True
            logger.warning(
                "the mask model is compiled in every process, about half a minute each, because "
                "compiling it once for all of them failed: %s", first_line(error),
            )  # fmt: skip
            logger.debug("ahead-of-time compilation", exc_info=error)
            return self._compiled_in_process(module)

    def _loaded(self, path: Path, module: torch.nn.Module, inputs: Tensors) -> Function:
        """Load an artifact and run it once.

        Raises:
            UnusableError: it is not there, or damaged.
            UntriedError: this machine cannot load it, whatever it is.

        """
        if not path.exists():
            raise UnusableError("")
        try:
            if _digest_file(path).read_text() != _digest(path):
                raise UnusableError("its content is not what was written")
            loaded = LoadedArtifact(path, constants_of(module), self._device)
            loaded(*inputs)
            loaded.remove_unpacked()
        except (OSError, RuntimeError) as error:
            raise_of_device(error)
            if is_of_machine(str(error), path):
                raise UntriedError(f"{path} cannot be loaded: {first_line(error)}") from error
            raise UnusableError(first_line(error)) from error
        return loaded

    def _made(self, name: str, path: Path, module: torch.nn.Module, inputs: Tensors) -> Function:
        """Load an artifact, or compile it; only one process at a time."""
        try:
            return self._loaded(path, module, inputs)  # made by another process meanwhile
        except UnusableError as error:
            if path.exists():
                logger.warning("%s is damaged (%s): it is compiled again", path, error)
                path.unlink()
        self._tell(name, inputs)
        begun = time.monotonic()
        try:
            self._compile(path, module, inputs)
            logger.info("%s compiled in %.0f s: %s", name, time.monotonic() - begun, path)
            return self._loaded(path, module, inputs)
        except UnusableError as error:
            reason = f"{error} (`autolabel cache clear torch` lets it be tried again)"
            write_whole(_refused_file(path), reason)  # for the next process
            raise UnusableError(reason) from error

    def _tell(self, name: str, inputs: Tensors) -> None:
        if not self._told:
            logger.warning(
                "compiling the mask model for this GPU, half a minute for each size of its inputs; "
                "later starts load it from %s", self._folder,
            )  # fmt: skip
        self._told = True
        logger.info("compiling %s for %s", name, [tuple(given.shape) for given in inputs])

    def _compile(self, path: Path, module: torch.nn.Module, inputs: Tensors) -> None:
        self._prepare_compiler()
        need_compilers(self._device)
        with (
            torch.no_grad(),
            tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as folder,
        ):
            made = Path(folder) / path.name
            exported = torch.export.export(module, inputs)
            with libraries_to_link(Path(folder)) as libraries:
                options = _OPTIONS | {"aot_inductor.custom_op_libs": libraries}
                torch._inductor.aoti_compile_and_package(
                    exported, package_path=str(made), inductor_configs=options
                )
            need_sound(made, constants_of(module), inputs, self._device)
            write_whole(_digest_file(path), _digest(made))
            made.replace(path)

    def _compiled_in_process(self, module: torch.nn.Module) -> Function:
        self._prepare_compiler()
        # Every bucket is a compilation of the same modules.
        torch._dynamo.config.recompile_limit = 64
        compiled: Function = torch.compile(module, dynamic=False)
        return compiled

    def _prepare_compiler(self) -> None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self._folder.with_name("inductor")))
        quiet_torch_compiler()


def _waiting() -> None:
    logger.warning("waiting for another process, which compiles the mask model")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _refused_file(path: Path) -> Path:
    """Return where the reason is why what was compiled does not run."""
    return path.with_suffix(".refused")
