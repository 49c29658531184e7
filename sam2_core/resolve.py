"""From what a user names (a preset, a folder, a checkpoint) to an exported model on disk."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.cache import cache_folder
from sam2_core.presets import PRESETS, Preset, preset_named
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.architecture import Sam2
    from sam2_core.export import ExportOptions

CHECKPOINT_SUFFIXES = (".pt", ".pth", ".safetensors")
RANDOM = "random:"
_WEIGHTS = Path(__file__).parent / "weights"
_SEED = 0


@dataclass(frozen=True)
class Wanted:
    """Which form of a model, and where it is looked for and made.

    Attributes:
        precision: "fp32" or "fp16".
        graph: "restructured" or "published".
        cache: the cache folder.
        progress: called with what is being done, when it takes long.

    """

    precision: str = "fp32"
    graph: str = "restructured"
    cache: Path | None = None
    progress: Callable[[str], object] = lambda _: None

    @property
    def variant(self) -> str:
        """Name of the folder of this form."""
        return f"{self.graph}-{self.precision}"

    def options(self) -> ExportOptions:
        """Return what the export is told."""
        from sam2_core.export import ExportOptions

        return ExportOptions(graph=self.graph, precision=self.precision)

    def exported(self, preset: str, checkpoint: str) -> list[Path]:
        """Return complete exports in the cache, newest first; `*` matches any."""
        from sam2_core.export import is_current

        found = (cache_folder(self.cache) / "models").glob(
            f"{preset}/{checkpoint[:12]}/{self.variant}/model.json"
        )
        newest = sorted(found, key=lambda path: -path.stat().st_mtime)
        return [path.parent for path in newest if is_current(path.parent)]


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
        return ModelFolder.open(path, wanted.cache)
    if path.suffix in CHECKPOINT_SUFFIXES:
        return _from_checkpoint(path, wanted)
    name = str(model)
    if name.startswith(RANDOM):
        return _random(preset_named(name.removeprefix(RANDOM)), wanted)
    if path.exists():
        raise AutolabelError(
            f"{path} is not a model: expected a folder with model.json, a checkpoint "
            f"({', '.join(CHECKPOINT_SUFFIXES)}), or one of {', '.join(PRESETS)}"
        )
    preset = preset_named(name)
    bundled = _WEIGHTS / preset.name / wanted.variant
    if (bundled / "model.json").is_file():
        return ModelFolder.open(bundled, wanted.cache)
    trained = [
        folder
        for folder in wanted.exported(preset.name, "*")
        if not folder.parent.name.startswith("random-")
    ]
    if trained:
        return ModelFolder.open(trained[0], wanted.cache)
    return _downloaded(preset, wanted)


def need_torch(what: str) -> None:
    """Raise `AutolabelError` where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise AutolabelError(
            f"{what} needs PyTorch: pip install 'sam2-autolabel[export]', or export the model on "
            "another machine with `autolabel models export` and name its folder"
        )


def _export(model: Sam2, sha256: str, weights: str, wanted: Wanted) -> ModelFolder:
    from sam2_core.export import export_model, exported_folder

    folder = exported_folder(model.preset, sha256, wanted.options(), cache_folder(wanted.cache))
    export_model(
        model, folder, checkpoint_sha256=sha256, weights=weights, options=wanted.options(),
        progress=lambda graph: wanted.progress(f"exporting {model.preset.name}: {graph}"),
    )  # fmt: skip
    return ModelFolder.open(folder, wanted.cache)


def _random(preset: Preset, wanted: Wanted) -> ModelFolder:
    name = f"random-{_SEED}"
    exported = wanted.exported(preset.name, name)
    if exported:
        return ModelFolder.open(exported[0], wanted.cache)
    need_torch(f"exporting {preset.name} with random weights")
    from sam2_core.architecture import random_weights

    return _export(random_weights(preset, _SEED), name, f"random, seed {_SEED}", wanted)


def _from_checkpoint(path: Path, wanted: Wanted) -> ModelFolder:
    from sam2_core.checkpoints import load_checkpoint, verify

    if not path.is_file():
        raise AutolabelError(f"there is no checkpoint {path}")
    sha256 = verify(path, cache=wanted.cache)
    exported = wanted.exported("*", sha256)
    if exported:
        return ModelFolder.open(exported[0], wanted.cache)
    need_torch(f"exporting {path}")
    wanted.progress(f"reading {path}")
    return _export(load_checkpoint(path), sha256, path.name, wanted)


def _downloaded(preset: Preset, wanted: Wanted) -> ModelFolder:
    from sam2_core.checkpoints import fetch_checkpoint

    if not preset.checkpoint:
        raise AutolabelError(
            f"there are no weights for {preset.name} as {wanted.variant}: name a model folder or a "
            f"checkpoint, or random:{preset.name} for seeded random weights"
        )
    need_torch(f"exporting {preset.name}")
    wanted.progress(f"fetching {preset.checkpoint}")
    path, _ = fetch_checkpoint(preset, cache=wanted.cache)
    return _from_checkpoint(path, wanted)
