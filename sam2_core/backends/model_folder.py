"""An exported model on disk: graphs and `model.json`, as docs/MODELS.md describes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sam2_core.cache import FileIdentity, cache_folder, file_identity, file_sha256
from sam2_core.labels_version import LABELS_VERSION
from sam2_core.presets import MICRO, PRESETS, Preset, preset_named
from sam2_core.types import CLOSE_UP, FORMAT_VERSION, AutolabelError, ModelStamp

GRAPHS = ("restructured", "published")
PRECISIONS = ("fp32", "fp16")
# Facts of model.json that every graph carries too.
METADATA = (
    "preset", "image_size", "checkpoint_sha256", "graph", "precision", "format_version",
)  # fmt: skip


# Graphs beside a restructured encoder, for following objects through video.
MEMORY_OUTPUTS = {
    "memory_attention": ("conditioned",),
    "memory_decoder": ("logits", "predicted_iou", "object_score", "pointers"),
    "memory_mask": ("conditioned", "logits", "mask_input"),
    "memory_encoder": ("memories",),
}
NEEDED = {"preset", "image_size", "checkpoint_sha256", "graph", "precision"}
_PRESETS = (*PRESETS, MICRO.name)
_CHOICES = {"preset": _PRESETS, "graph": GRAPHS, "precision": PRECISIONS}


def problem_of(facts: dict[str, Any]) -> str:
    """Say what is wrong with a model.json that has what every one needs; "" where nothing is."""
    for name, choices in _CHOICES.items():
        if facts[name] not in choices:
            return f"{name} is {facts[name]!r}, which is none of {', '.join(choices)}"
    for name in ("image_size", "close_up_size"):
        if type(pixels := facts.get(name, 0)) is not int or pixels < 0:
            return f"{name} is {facts[name]!r}, which is no number of pixels"
    kinds = {"checkpoint_sha256": str, "also": dict, "files": dict}
    for name, kind in kinds.items():
        if not isinstance(facts.get(name, kind()), kind):
            return f"{name} is {facts[name]!r}, which is not what an export writes"
    return ""


# What no graph refers to.
_UNREAD = {
    "model.json", "reference.json", "reference_close_up.json", "reference_memory.json",
}  # fmt: skip
_MEMORY = {f"{name}.onnx" for name in MEMORY_OUTPUTS}
# Where bundled graphs of a memory have their weights: the checkpoint, and what was folded of it.
MEMORY_WEIGHTS, MEMORY_FOLDED = "memory.safetensors", "memory_folded.bin"
_OF_MEMORY = _MEMORY | {MEMORY_WEIGHTS, MEMORY_FOLDED}
# In a stamp's name, in the place of the kind of graphs.
CLOSE_UPS = "close-ups"


def close_up_size(preset: Preset, graph: str) -> int:
    """Return the input size of the close-ups that an export can take, 0 for none."""
    return preset.close_up_size if graph == "restructured" else 0


def exported_folder(
    preset: Preset, checkpoint_sha256: str, graph: str, precision: str, cache: Path | None = None
) -> Path:
    """Return where the exported model of a checkpoint belongs in the cache."""
    models = cache_folder(cache) / "models" / preset.name
    return models / checkpoint_sha256[:12] / f"{graph}-{precision}"


def is_current(folder: Path) -> bool:
    """Whether a folder holds a complete exported model of this format."""
    try:
        facts = json.loads((folder / "model.json").read_text())
        files = facts["files"]
        size = close_up_size(preset_named(facts["preset"]), facts["graph"])
        current = (facts["format_version"], facts.get("close_up_size", 0)) == (FORMAT_VERSION, size)
        return current and all(
            (folder / name).stat().st_size == file["bytes"] for name, file in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AutolabelError):
        return False


@dataclass(frozen=True)
class ModelFolder:
    """A folder with encoder.onnx, decoder.onnx and model.json.

    Attributes:
        path: the folder.
        facts: what model.json says.
        cache: where hashes of large files are remembered.
        close_ups: whether its graphs for close-ups are meant, not those for whole frames.
        suffix: behind the names of the graphs of the precision that is meant.

    """

    path: Path
    facts: dict[str, Any]
    cache: Path | None = None
    close_ups: bool = False
    suffix: str = ""
    # Which files it held when they were hashed, and their hash.
    _pin: tuple[tuple[tuple[str, FileIdentity], ...], str] | None = None

    @staticmethod
    def open(path: Path, cache: Path | None = None) -> ModelFolder:
        """Read a folder's model.json; `AutolabelError` when it is missing or damaged."""
        described = path / "model.json"
        try:
            facts = json.loads(described.read_text())
            missing = sorted(NEEDED - set(facts))
        except FileNotFoundError as error:
            raise AutolabelError(
                f"{path} is not an exported model: it has no model.json. `autolabel models export` "
                "makes one from a checkpoint"
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise AutolabelError(f"cannot read {described}: {error}. Export it again") from error
        if missing:
            raise AutolabelError(f"{described} lacks {', '.join(missing)}. Export the model again")
        if facts.get("format_version", 1) != FORMAT_VERSION:
            raise AutolabelError(
                f"{path} was exported in format {facts.get('format_version', 1)}, and this version "
                f"reads format {FORMAT_VERSION}: `autolabel models export` makes it again"
            )
        if problem := problem_of(facts):
            raise AutolabelError(f"{described}: {problem}. Export the model again")
        return ModelFolder(path, facts, cache)

    @property
    def image_size(self) -> int:
        """Side of the model's square input in pixels."""
        return int(self.facts["close_up_size" if self.close_ups else "image_size"])

    def for_close_ups(self, wanted: bool | None = True) -> ModelFolder:
        """Mean the graphs for close-ups, or not; None: where the folder has them.

        Raises:
            AutolabelError: they are wanted, and the folder has none.

        """
        has = bool(self.facts.get("close_up_size"))
        if wanted and not has:
            raise AutolabelError(f"{self.path} has no graphs for close-ups: use whole frames")
        return replace(self, close_ups=has if wanted is None else wanted)

    def in_precision(self, precision: str) -> ModelFolder:
        """Mean the graphs of a precision, where the folder has them; else it stays as it is."""
        suffix = self.facts.get("also", {}).get(precision)
        if suffix is None:
            return self
        return replace(self, facts=self.facts | {"precision": precision}, suffix=suffix)

    def has(self, name: str) -> bool:
        """Whether there is a graph."""
        return self._file(name).is_file()

    def _file(self, name: str) -> Path:
        return self.path / f"{name}{CLOSE_UP if self.close_ups else ''}{self.suffix}.onnx"

    def graph(self, name: str) -> Path:
        """Path of a graph; `AutolabelError` when the folder lacks it."""
        path = self._file(name)
        if not path.is_file():
            raise AutolabelError(f"{path} is missing: export the model again")
        return path

    def engine_sha256(self) -> str:
        """Hash over every graph file, external weights included; of a pinned folder, as pinned.

        Graphs of its memory are not among them.

        Raises:
            AutolabelError: a file is not the one that model.json names.

        """
        return self._pin[1] if self._pin else self._hashed(self._files())

    def memory_sha256(self) -> str:
        """Hash over the graphs of its memory; "" where one is missing.

        Raises:
            AutolabelError: a file is not the one that model.json names.

        """
        if not all((self.path / name).is_file() for name in _MEMORY):
            return ""
        return self._hashed(
            path for name in sorted(_OF_MEMORY) if (path := self.path / name).is_file()
        )

    def check(self) -> None:
        """Hold every file that was exported, the memory's too, against model.json.

        Raises:
            AutolabelError: a file is not the one that model.json names.
            OSError: it is not there.

        """
        self._hashed(self.path / name for name in self.facts.get("files", {}))

    def _hashed(self, files: Iterable[Path]) -> str:
        total = hashlib.sha256()
        recorded = self.facts.get("files", {})
        for file in files:
            digest, name = file_sha256(file, self.cache), str(file.relative_to(self.path))
            if recorded and name not in recorded:  # a graph may refer to it
                raise AutolabelError(
                    f"{file} is not among the files that were exported, which model.json names: "
                    "remove it, or export the model again"
                )
            if recorded and recorded[name]["sha256"] != digest:
                raise AutolabelError(
                    f"{file} is not the file that was exported: it has sha256 {digest}, and "
                    f"model.json names {recorded[name]['sha256']}. Copy or export the model again"
                )
            total.update(f"{name} {digest}\n".encode())
        return total.hexdigest()

    def _files(self) -> list[Path]:
        return sorted(
            file
            for file in self.path.rglob("*")
            if file.is_file() and file.name not in _UNREAD | _OF_MEMORY and file.suffix != ".sha256"
        )

    def _identities(self) -> tuple[tuple[str, FileIdentity], ...]:
        try:
            return tuple((str(file), file_identity(file)) for file in self._files())
        except OSError:  # one went while they were listed
            return ()

    def pinned(self) -> ModelFolder:
        """Remember which files these are; `unchanged` then tells whether they still are.

        Call it before the first graph is opened, and `unchanged` after each: then the bytes that
        were opened are those that the stamp says.
        """
        files = self._identities()
        pinned = replace(self, _pin=(files, replace(self, _pin=None).engine_sha256()))
        pinned.unchanged()
        return pinned

    def hold_against(self, metadata: Mapping[str, str], graph: str = "encoder") -> None:
        """Hold model.json against the metadata of a graph that was opened.

        Raises:
            AutolabelError: they name another preset, other weights or another size.

        """
        own = {name: str(self.facts.get(name, said)) for name, said in metadata.items()}
        own["image_size"] = str(self.image_size)
        for name in METADATA:
            if name in metadata and own[name] != metadata[name]:
                raise AutolabelError(
                    f"{self.path / 'model.json'}: {name} is {own[name]!r}, and {graph}.onnx was "
                    f"exported with {metadata[name]!r}. Export the model again"
                )

    def unchanged(self) -> None:
        """Hold a pinned folder against its files.

        Raises:
            AutolabelError: a file was replaced, added or removed.

        """
        if self._pin is None or self._identities() != self._pin[0]:
            raise AutolabelError(
                f"the model in {self.path} was replaced while it was in use, and its labels would "
                "have carried the name of the previous one: run again"
            )

    def stamp(self, backend: str) -> ModelStamp:
        """Say what makes masks with this folder and a backend."""
        name = f"{self.facts['preset']}/{CLOSE_UPS if self.close_ups else self.facts['graph']}"
        return ModelStamp(
            name=name,
            checkpoint_sha256=str(self.facts["checkpoint_sha256"]),
            engine_sha256=self.engine_sha256(),
            backend=backend,
            precision=str(self.facts["precision"]),
            code_version=LABELS_VERSION,
        )
