"""From what a user names (a preset, a checkpoint) to weights on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.backends.model_folder import MEMORY_WEIGHTS, is_current
from sam2_core.cache import cache_folder, file_identity, file_sha256
from sam2_core.checkpoints import load_checkpoint, load_memory
from sam2_core.model_download import fetch_checkpoint, record, verify
from sam2_core.presets import Preset, preset_named
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.architecture import Memory, Sam2

CHECKPOINT_SUFFIXES = (".pt", ".pth", ".safetensors")
RANDOM = "random:"
# The graphs that come with the package, in both precisions: small files, weights shared.
BUNDLED_GRAPHS = "restructured"
WEIGHTS = Path(__file__).parent / "weights"
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

    def exported(self, preset: str, checkpoint: str) -> list[Path]:
        """Return complete exports in the cache, newest first; `*` matches any."""
        found = (cache_folder(self.cache) / "models").glob(
            f"{preset}/{checkpoint[:12]}/{self.variant}/model.json"
        )
        newest = sorted(found, key=lambda path: -path.stat().st_mtime)
        return [path.parent for path in newest if is_current(path.parent)]


def bundled_checkpoint(preset: Preset) -> Path | None:
    """Return the weights of a preset that come with this package; its graphs lie beside them."""
    path = WEIGHTS / preset.name / BUNDLED_GRAPHS / f"{preset.name}.safetensors"
    return path if path.is_file() else None


@dataclass(frozen=True)
class Weights:
    """Weights that a model can be built from.

    Attributes:
        sha256: of the checkpoint file; `random-N` for seeded random weights.
        label: what to tell a user they are.
        preset: the preset's name, `*` where only reading the file tells.
        load: builds the PyTorch model.
        load_memory: builds its memory of video; None where it has none.
        memory_sha256: of the file that its memory would be in.

    """

    sha256: str
    label: str
    preset: str
    load: Callable[[], Sam2]
    load_memory: Callable[[], Memory | None]
    memory_sha256: str


def resolve_weights(model: str | Path, wanted: Wanted | None = None) -> Weights:
    """Find the weights that a user means, for building PyTorch modules or exporting.

    Args:
        model: a preset's name (its checkpoint is downloaded when it is not there), a checkpoint
            file, or `random:PRESET`.
        wanted: cache and progress.

    Raises:
        AutolabelError: there are none.

    """
    wanted = wanted or Wanted()
    path = Path(model).expanduser()
    if path.is_dir():
        raise AutolabelError(
            f"{path} is an exported model: this backend needs a checkpoint or a preset's name"
        )
    if path.suffix in CHECKPOINT_SUFFIXES:
        return _checkpoint(path, wanted)
    name = str(model)
    if name.startswith(RANDOM):
        return _random(preset_named(name.removeprefix(RANDOM)))
    return _published(preset_named(name), wanted)


def _random(preset: Preset) -> Weights:
    def load() -> Sam2:
        from sam2_core.architecture import random_weights

        return random_weights(preset, _SEED)

    def load_memory() -> Memory:
        from sam2_core.architecture import random_memory

        return random_memory(preset, _SEED)

    name = f"random-{_SEED}"
    return Weights(name, f"random, seed {_SEED}", preset.name, load, load_memory, name)


def _checkpoint(path: Path, wanted: Wanted) -> Weights:
    if not path.is_file():
        raise AutolabelError(f"there is no checkpoint {path}")
    identity, sha256 = file_identity(path), verify(path, cache=wanted.cache)

    def load() -> Sam2:
        model = load_checkpoint(path)
        if file_identity(path) != identity:
            raise AutolabelError(
                f"the checkpoint {path} was replaced while it was in use, and its labels would "
                "have carried the name of the previous one: run again"
            )
        record(path, sha256)
        return model

    return Weights(sha256, path.name, "*", load, lambda: load_memory(path), sha256)


def _published(preset: Preset, wanted: Wanted) -> Weights:
    bundled = bundled_checkpoint(preset)
    if bundled:
        own = bundled.with_name(MEMORY_WEIGHTS)
        return replace(
            _checkpoint(bundled, wanted), load_memory=lambda: load_memory(own, preset),
            memory_sha256=file_sha256(own, wanted.cache),
        )  # fmt: skip
    if not preset.checkpoint:
        raise AutolabelError(
            f"there are no weights for {preset.name} as {wanted.variant}: name a model folder or a "
            f"checkpoint, or random:{preset.name} for seeded random weights"
        )
    wanted.progress(f"fetching {preset.checkpoint}")
    path, _ = fetch_checkpoint(preset, cache=wanted.cache)
    return _checkpoint(path, wanted)
