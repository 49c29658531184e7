"""Which model labels, and the one copy of it that a process keeps warm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.types import ModelStamp

if TYPE_CHECKING:
    from sam2_core.resolve import Wanted
    from sam2_core.segmenter import Segmenter

# What `auto` takes, best masks first, if it has been exported on this machine.
BY_QUALITY = ("large", "base_plus", "small", "tiny")
BUNDLED = "compact"


@dataclass(frozen=True)
class ModelChoice:
    """A model that is there, not loaded yet.

    Attributes:
        folder: the exported model.
        backend: what will run it, resolved: never "auto".
        precision: fp32 or fp16.
        stamp: what its labels will carry.
        reason: why this model and this backend, for the user.

    """

    folder: Path
    backend: str
    precision: str
    stamp: ModelStamp
    reason: str


def choose_model(
    model: str = "auto", backend: str = "auto", progress: Callable[[str], object] = lambda _: None
) -> ModelChoice:
    """Find the model and what runs it, without reading weights into memory.

    Args:
        model: a preset, a folder, a checkpoint, or "auto": the best that was exported on this
            machine, else the bundled compact one.
        backend: auto, onnxruntime, torch or tensorrt.
        progress: called with what is being done, when a checkpoint must be fetched or exported.

    Raises:
        AutolabelError: there is no such model, or this backend cannot run here.

    """
    from sam2_core.load import choose_backend, precision_for
    from sam2_core.resolve import Wanted, resolve_model

    chosen, reason = choose_backend(backend)
    wanted = Wanted(precision_for(chosen, "auto"), progress=progress)
    if model == "auto":
        model, why = _best_here(wanted)
        reason = f"{why}; {reason}"
    folder = resolve_model(model, wanted)
    return ModelChoice(folder.path, chosen, wanted.precision, folder.stamp(chosen), reason)


def _best_here(wanted: Wanted) -> tuple[str, str]:
    for name in BY_QUALITY:
        if any(not one.parent.name.startswith("random-") for one in wanted.exported(name, "*")):
            return name, "the largest model exported on this machine"
    return BUNDLED, "bundled; `autolabel models download tiny` gets Meta's"


_lock = threading.Lock()
_warm: dict[tuple[Path, str, str], Segmenter] = {}


def warm_segmenter(choice: ModelChoice) -> Segmenter:
    """Return the process's one segmenter of this model; loads it the first time."""
    key = (choice.folder, choice.backend, choice.precision)
    with _lock:
        if key not in _warm:
            from sam2_core.load import load_backend
            from sam2_core.segmenter import Segmenter

            backend = load_backend(choice.folder, choice.backend, choice.precision)
            _warm[key] = Segmenter(backend)
        return _warm[key]
