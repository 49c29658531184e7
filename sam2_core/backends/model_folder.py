"""An exported model on disk: graphs and `model.json`, as docs/ARCHITECTURE.md describes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sam2_core.cache import file_sha256
from sam2_core.onnx_contract import CLOSE_UP
from sam2_core.types import AutolabelError, ModelStamp

# In a stamp's name, in the place of the kind of graphs.
CLOSE_UPS = "close-ups"


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
        close_ups: whether its graphs for close-ups are meant, not those for whole frames.

    """

    path: Path
    facts: dict[str, Any]
    cache: Path | None = None
    close_ups: bool = False

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

    def has(self, name: str) -> bool:
        """Whether there is a graph."""
        return self._file(name).is_file()

    def _file(self, name: str) -> Path:
        return self.path / f"{name}{CLOSE_UP if self.close_ups else ''}.onnx"

    def graph(self, name: str) -> Path:
        """Path of a graph; `AutolabelError` when the folder lacks it."""
        path = self._file(name)
        if not path.is_file():
            raise AutolabelError(f"{path} is missing: export the model again")
        return path

    def window_sides(self) -> tuple[int, ...]:
        """Sides, in cells, of the windows that the folder has decoders for, ascending."""
        sides = () if self.close_ups else self.facts.get("windows", ())
        return tuple(sorted(int(side) for side in sides))

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
        name = f"{self.facts['preset']}/{CLOSE_UPS if self.close_ups else self.facts['graph']}"
        return ModelStamp(
            name=name,
            checkpoint_sha256=str(self.facts["checkpoint_sha256"]),
            engine_sha256=self.engine_sha256(),
            backend=backend,
            precision=str(self.facts["precision"]),
            code_version=code_version(),
        )
