"""An exported model on disk: graphs and `model.json`, as docs/ARCHITECTURE.md describes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sam2_core.cache import file_sha256
from sam2_core.types import AutolabelError, ModelStamp


def code_version() -> str:
    """Return this package's version."""
    try:
        return version("sam2-autolabel")
    except PackageNotFoundError:  # run from a plain checkout
        return "unknown"


@dataclass(frozen=True)
class ModelFolder:
    """A folder with encoder.onnx, decoder.onnx and model.json.

    Attributes:
        path: the folder.
        facts: what model.json says.
        cache: where hashes of large files are remembered.

    """

    path: Path
    facts: dict[str, Any]
    cache: Path | None = None

    @staticmethod
    def open(path: Path, cache: Path | None = None) -> ModelFolder:
        """Read a folder's model.json; `AutolabelError` when it is missing or damaged."""
        described = path / "model.json"
        try:
            facts = json.loads(described.read_text())
            needed = {"preset", "image_size", "checkpoint_sha256", "graph", "precision"}
            missing = sorted(needed - set(facts))
        except FileNotFoundError as error:
            raise AutolabelError(
                f"{path} is no exported model: it has no model.json. `autolabel models export` "
                "makes one from a checkpoint"
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise AutolabelError(f"cannot read {described}: {error}. Export it again") from error
        if missing:
            raise AutolabelError(f"{described} lacks {', '.join(missing)}. Export the model again")
        return ModelFolder(path, facts, cache)

    @property
    def image_size(self) -> int:
        """Side of the model's square input in pixels."""
        return int(self.facts["image_size"])

    def graph(self, name: str) -> Path:
        """Path of a graph; `AutolabelError` when the folder lacks it."""
        path = self.path / f"{name}.onnx"
        if not path.is_file():
            raise AutolabelError(f"{path} is missing: export the model again")
        return path

    def window_sides(self) -> tuple[int, ...]:
        """Sides, in cells, of the windows that the folder has decoders for, ascending."""
        return tuple(sorted(int(side) for side in self.facts.get("windows", ())))

    def engine_sha256(self) -> str:
        """Hash over every graph file, external weights included."""
        names = sorted(
            file for file in self.path.rglob("*") if file.is_file() and file.suffix != ".json"
        )
        total = hashlib.sha256()
        for file in names:
            digest = file_sha256(file, self.cache)
            total.update(f"{file.relative_to(self.path)} {digest}\n".encode())
        return total.hexdigest()

    def stamp(self, backend: str) -> ModelStamp:
        """Say what makes masks with this folder and a backend."""
        name = f"{self.facts['preset']}/{self.facts['graph']}"
        return ModelStamp(
            name=name,
            checkpoint_sha256=str(self.facts["checkpoint_sha256"]),
            engine_sha256=self.engine_sha256(),
            backend=backend,
            precision=str(self.facts["precision"]),
            code_version=code_version(),
        )
