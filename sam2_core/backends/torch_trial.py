"""An artifact of PyTorch's compiler is tried in a process of its own before it counts as made.

One that crashes takes its process with it, whatever that was doing. So a child loads it first, with
empty weights, runs it and captures it as the backend would. The child is this module.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sam2_core.backends.torch_artifact import (
    LoadedArtifact,
    UntriedError,
    UnusableError,
    is_of_machine,
)
from sam2_core.backends.torch_captured import Captured, Tensors
from sam2_core.machine_errors import first_line

logger = logging.getLogger(__name__)

# What a labeling process has loaded beside it.
_BACKEND = "sam2_core.backends.torch_backend"
_LIMIT_S = 120
_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)


def need_sound(
    path: Path, constants: Mapping[str, torch.Tensor], inputs: Tensors, device: torch.device
) -> None:
    """Try an artifact in another process, on tensors of the layouts that are given.

    Raises:
        UnusableError: it fails there, crashes, or takes too long.
        UntriedError: the device has no memory for a trial beside this process, the machine lacks
            something else, or somebody ended it: that says nothing of the artifact.

    """
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else None
    given = {
        "path": str(path),
        "device": str(device if index is None else torch.device("cuda", index)),
        "constants": {name: _layout(value) for name, value in constants.items()},
        "inputs": [_layout(value) for value in inputs],
    }
    if device.type == "cuda":
        torch.cuda.empty_cache()
    search = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__], input=json.dumps(given), timeout=_LIMIT_S,
            capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": search},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnusableError(f"PyTorch's compiled module runs longer than {_LIMIT_S} s") from error
    logger.debug("trial of %s: exit code %d\n%s", path.name, done.returncode, done.stderr)
    if not done.returncode:
        return
    if -done.returncode in _FROM_OUTSIDE:
        raise UntriedError(f"the process of its trial was ended by signal {-done.returncode}")
    last = ((done.stdout or done.stderr).strip().splitlines() or ["no reason is given"])[-1]
    if is_of_machine(last, path):
        raise UntriedError(f"PyTorch's compiled module cannot be tried on this machine: {last}")
    if done.returncode < 0:
        raise UnusableError(
            f"PyTorch's compiled module crashes where it is loaded (signal {-done.returncode})"
        )
    raise UnusableError(f"PyTorch's compiled module fails where it is loaded: {last}")


def _layout(value: torch.Tensor) -> list[Any]:
    return [list(value.shape), list(value.stride()), str(value.dtype).removeprefix("torch.")]


def _zeros(layout: list[Any], device: torch.device) -> torch.Tensor:
    shape, stride, dtype = layout
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    flat = torch.zeros(max(span, 0), dtype=getattr(torch, dtype), device=device)
    return flat.as_strided(shape, stride)


def _try(given: dict[str, Any]) -> None:
    device = torch.device(given["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    constants = {name: _zeros(layout, device) for name, layout in given["constants"].items()}
    inputs = tuple(_zeros(layout, device) for layout in given["inputs"])
    function = LoadedArtifact(Path(given["path"]), constants, device)
    function(*inputs)
    function.remove_unpacked()
    if device.type != "cuda":
        return
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    Captured(function, inputs, stream, pool).graph.replay()
    torch.cuda.synchronize()


def main() -> int:
    """Try the artifact that standard input tells of; the last line written says why it failed."""
    signal.alarm(_LIMIT_S)  # also where the parent is gone
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    importlib.import_module(_BACKEND)
    try:
        with torch.no_grad():
            _try(json.load(sys.stdin))
    except RuntimeError as error:
        sys.stdout.write(first_line(error))
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # As children that share a GPU do: nothing that ends by itself can crash on the way out.
    os._exit(status)
