"""From what a user names (a preset, a folder, a checkpoint) to a model on disk, and loaded here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sam2_core.backend_choice import (
    FOLLOWING,
    KINDS,
    ON_GPU,
    choose_backend,
    imported,
    precision_for,
    require_tensorrt,
)
from sam2_core.backends.model_folder import (
    ModelFolder,
    exported_folder,
)
from sam2_core.cache import cache_folder
from sam2_core.checkpoints import EXPORTING, NoMemoryError, need_torch
from sam2_core.devices import cuda_devices, refuse_if_gone
from sam2_core.find_weights import (
    CHECKPOINT_SUFFIXES,
    RANDOM,
    WEIGHTS,
    Wanted,
    Weights,
    resolve_weights,
)  # fmt: skip
from sam2_core.model_download import checkpoint_path
from sam2_core.presets import PRESETS, Preset, preset_named
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.backends.follow_backends import FollowBackend
    from sam2_core.backends.protocol import Backend

logger = logging.getLogger(__name__)


def resolve_model(model: str | Path, wanted: Wanted | None = None) -> ModelFolder:
    """Find, or make, the exported model that a user means.

    Args:
        model: a preset's name (exported in the cache, bundled, or from its checkpoint, which is
            downloaded when it is not there), a model folder, a checkpoint file, or `random:PRESET`
            for seeded random weights.
        wanted: which form of it.

    Raises:
        AutolabelError: there is no such model, or it cannot be exported here.

    """
    wanted = wanted or Wanted()
    path = Path(model).expanduser()
    if path.is_dir():
        return ModelFolder.open(path, wanted.cache).in_precision(wanted.precision)
    if path.suffix not in CHECKPOINT_SUFFIXES and not str(model).startswith(RANDOM):
        if path.exists():
            raise AutolabelError(
                f"{path} is not a model: expected a folder with model.json, a checkpoint "
                f"({', '.join(CHECKPOINT_SUFFIXES)}), or one of {', '.join(PRESETS)}"
            )
        preset = preset_named(str(model))
        exported = wanted.exported(preset.name, "*")
        bundled = WEIGHTS / preset.name / wanted.graph
        found = [bundled] if (bundled / "model.json").is_file() else exported
        for folder in found:
            if not folder.parent.name.startswith("random-"):
                return ModelFolder.open(folder, wanted.cache).in_precision(wanted.precision)
        _need_torch_to_export(preset.name, preset.name, "*", wanted, _to_fetch(preset, wanted))
    return _exported(resolve_weights(model, wanted), wanted)


def _to_fetch(preset: Preset, wanted: Wanted) -> str:
    """Say what fetches a preset's checkpoint, where that is not here."""
    name = preset.name
    if not preset.checkpoint or checkpoint_path(preset, cache=wanted.cache).is_file():
        return ""
    return f"`autolabel models download {name}` fetches the weights of {name} first; then "


def _need_torch_to_export(
    label: str, preset: str, checkpoint: str, wanted: Wanted, before: str = ""
) -> None:
    other = "fp32" if wanted.precision == "fp16" else "fp16"
    there = replace(wanted, precision=other).exported(preset, checkpoint)
    beside = f" (there is {other} here: --precision {other} would take it)" if there else ""
    need_torch(
        f"{before}exporting {label} in {wanted.precision}{beside}",
        "; or export the model on another machine with `autolabel models export` and name its "
        "folder",
        EXPORTING,
    )


def _exported(weights: Weights, wanted: Wanted) -> ModelFolder:
    """Return the export of some weights, made now if there is none."""
    there = wanted.exported(weights.preset, weights.sha256)
    if there:
        return ModelFolder.open(there[0], wanted.cache)
    _need_torch_to_export(weights.label, weights.preset, weights.sha256, wanted)
    from sam2_core.export import export_model

    model = weights.load()
    form = {"graph": wanted.graph, "precision": wanted.precision}
    folder = exported_folder(model.preset, weights.sha256, **form, cache=wanted.cache)
    export_model(
        model, folder, checkpoint_sha256=weights.sha256, weights=weights.label, **form,
        memory=weights.load_memory(),
        progress=lambda graph: wanted.progress(f"exporting {model.preset.name}: {graph}"),
    )  # fmt: skip
    return ModelFolder.open(folder, wanted.cache)


def load_backend(
    model: str | Path,
    backend: str = "auto",
    precision: str = "auto",
    graph: str = "restructured",
    *,
    threads: int | None = None,
    close_ups: bool | None = None,
    cache: str | Path | None = None,
    progress: Callable[[str], object] = lambda _: None,
    triton_urls: Sequence[str] = (),
) -> Backend:
    """Load a model on this machine.

    Args:
        model: a preset's name, a model folder, a checkpoint file, or `random:PRESET`; see
            `resolve_model`.
        backend: one of `BACKENDS`.
        precision: one of `PRECISIONS`; what "auto" is, `precision_for` says.
        graph: "restructured", or "published" for comparison.
        threads: CPU threads of one operator; every core when None.
        close_ups: take each box in a crop of its own, not whole frames; None: where the model can.
        cache: cache folder; the default one when None.
        progress: called with what is being done, when it takes long.
        triton_urls: servers of the backend "triton", see `sam2_core.backends.triton_backend`.

    Raises:
        AutolabelError: the model or the backend is not there, or cannot be used.
        DeviceLostError: the GPU worked before and is gone.

    """
    chosen, reason = choose_backend(backend)
    if chosen in ON_GPU:
        refuse_if_gone()  # PyTorch would go on on the CPU
    if chosen == "torch":
        need_torch("the torch backend")
    if chosen == "tensorrt":
        require_tensorrt()
    load: Callable[..., Backend] = imported(KINDS[chosen].loader)
    if chosen == "triton":
        return load(model, precision, triton_urls)
    exact = precision_for(chosen, precision, model, close_ups)
    logger.info("backend %s (%s), precision %s", chosen, reason, exact)
    wanted = Wanted(exact, graph, cache_folder(cache), progress)
    if chosen == "torch":
        return load(resolve_weights(model, wanted), wanted, close_ups)
    folder = resolve_model(model, wanted).for_close_ups(close_ups)
    return load(folder, threads) if chosen == "onnxruntime-cpu" else load(folder)


def memory_sha256(model: str | Path, backend: str, precision: str) -> str:
    """Return the hash of a model's memory of video: of its checkpoint, or of its graphs.

    Args:
        model: as for `load_backend`.
        backend: exactly which.
        precision: fp32 or fp16.

    Raises:
        NoMemoryError: the model has no memory, or the backend runs none.
        AutolabelError: a graph is not the one that was exported.

    """
    if backend not in FOLLOWING:
        raise NoMemoryError(
            f"{backend} cannot follow objects: choose --backend {' or '.join(FOLLOWING)}"
        )
    if backend == "torch":
        need_torch("the torch backend")
        weights = resolve_weights(model, Wanted(precision))
        name, found = str(model), weights.memory_sha256 if weights.load_memory() else ""
    else:
        folder = resolve_model(model, Wanted(precision))
        name, found = str(folder.facts["preset"]), folder.memory_sha256()
    if not found:
        raise _without_memory(name)
    return found


def _without_memory(name: str) -> NoMemoryError:
    return NoMemoryError(
        f"{name} has no memory to follow objects with. compact, tiny, small, base_plus and "
        "large have one; a folder exported without it gets it from `autolabel cache clear "
        "models` and `autolabel models export`"
    )


def load_follow_backend(model: str | Path, backend: str, precision: str) -> FollowBackend:
    """Load what follows objects on this machine.

    Args:
        model: one that has a memory; as for `load_backend`.
        backend: one of `FOLLOWING`.
        precision: fp32 or fp16.

    Raises:
        NoMemoryError: the model has no memory, or the backend runs none.
        AutolabelError: it is not there, or cannot be used.

    """
    wanted = Wanted(precision)
    if backend == "torch":
        need_torch("the torch backend")
        weights = resolve_weights(model, wanted)
        memory = weights.load_memory()
        if memory is None:
            raise _without_memory(str(model))
        device = "cuda" if cuda_devices() else "cpu"
        follower = imported(KINDS[backend].follower)
        in_torch: FollowBackend = follower(weights.load(), memory, device, precision)
        in_torch.memory_sha256 = weights.memory_sha256
        return in_torch
    # Refuses other backends, and models without one.
    sha256 = memory_sha256(model, backend, precision)
    folder = resolve_model(model, wanted)
    sizes = {"image_size": folder.image_size, "width": folder.facts.get("width")}
    preset = preset_named(folder.facts["preset"]).sized(**sizes)
    in_graphs = imported(KINDS[backend].follower)(folder.path, preset)
    for name, session in in_graphs.sessions.items():
        folder.hold_against(session.get_modelmeta().custom_metadata_map, name)
    in_graphs.memory_sha256 = sha256
    return cast("FollowBackend", in_graphs)
