"""The graphs of a model inside a model repository, so that it can be carried elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from sam2_core.resolve import Wanted, resolve_model
from sam2_core.serving.contract import WHOLE_FRAMES, names_of, served_as
from sam2_core.serving.python_model import IN_REPOSITORY


def copy_graphs(out: Path, model: str, version: int, backend: str, precision: str) -> str:
    """Copy a model's exported graphs beside its encoder; return how the server finds them.

    A backend that builds the model from weights gets the name alone: it finds them itself.

    Raises:
        AutolabelError: there is no such model.

    """
    if backend == "torch":
        return model
    name = model.removesuffix(WHOLE_FRAMES)
    found = resolve_model(name, Wanted(precision)).path
    encoder = names_of(served_as(model)).encoder
    target = out / encoder / str(version) / "graphs"
    shutil.rmtree(target, ignore_errors=True)
    # Also weights: graphs may have theirs in a file beside them.
    shutil.copytree(found, target)
    return IN_REPOSITORY.format(encoder) + model[len(name) :]
