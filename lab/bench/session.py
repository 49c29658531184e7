"""What the parts of a benchmark run share: the frame, the options and the loaded model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lab.bench.frame import BenchFrame
from lab.bench.outlines import OutlinedBackend
from lab.bench.peers import PEERS
from lab.bench.timing import Note
from sam2_core.backend_choice import choose_backend, precision_for
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.protocol import Backend
from sam2_core.find_weights import Wanted
from sam2_core.load import load_backend, resolve_model
from sam2_core.segmenter import Segmenter
from sam2_core.types import AutolabelError


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Attributes:
        model: as in `resolve_model`.
        backend: as in `load_backend`.
        precision: "auto", "fp32" or "fp16".
        repeats: rounds of every comparison.
        budget_s: of each section; a section stops repeating when it is spent.
        peers: which of `PEERS` to run.
        cache: cache folder.

    """

    model: str
    backend: str = "auto"
    precision: str = "auto"
    repeats: int = 10
    budget_s: float = 60.0
    peers: tuple[str, ...] = tuple(PEERS)
    cache: Path | None = None


@dataclass
class Session:
    """What the sections of a run share."""

    options: BenchOptions
    frame: BenchFrame
    note: Note
    backend_name: str
    precision: str
    folder: ModelFolder | None
    segmenter: Segmenter
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def backend(self) -> Backend:
        """The measured backend."""
        return self.segmenter.backend

    @property
    def random(self) -> bool:
        """Whether the weights are random, and whole frames are timed with outlines for masks."""
        return self.backend.info.stamp.checkpoint_sha256.startswith("random-")

    @cached_property
    def frames(self) -> Segmenter:
        """What whole frames are timed with, in calls of the same sizes."""
        if not self.random:
            return self.segmenter
        return Segmenter(
            OutlinedBackend(self.backend),
            decoder_chunk=self.segmenter.decoder_chunk,
            encoder_batch=self.segmenter.encoder_batch,
        )

    @property
    def preset(self) -> str:
        """Name of the measured model's preset."""
        return self.backend.info.stamp.name.split("/")[0]

    @property
    def graph(self) -> str:
        """Graph that is measured."""
        return self.backend.info.stamp.name.split("/")[-1]

    def load(self, graph: str) -> Backend:
        """Load this model again, as another graph."""
        model: str | Path = self.options.model
        if self.folder is not None:
            wanted = Wanted(self.precision, graph, self.options.cache, self.note)
            # A folder named by its path has its other graphs beside it.
            beside = self.folder.path.parent / wanted.variant
            model = self.folder.path if not (beside / "model.json").is_file() else beside
            model = as_graph(model, wanted).path
        return load_backend(
            model, self.backend_name, self.precision, graph, cache=self.options.cache,
            close_ups=False, progress=self.note,
        )  # fmt: skip

    def noting(self, prefix: str) -> Note:
        """Return a note that says which part of the run it is about."""
        return lambda text: self.note(f"{prefix}: {text}")


def as_graph(model: str | Path, wanted: Wanted) -> ModelFolder:
    """Resolve a model; one that comes as another graph is exported from its checkpoint, with torch.

    That takes a minute or two once; the export stays in the cache.

    Raises:
        AutolabelError: it cannot be exported here.

    """
    folder = resolve_model(model, wanted)
    if folder.facts["graph"] == wanted.graph:
        return folder
    weights = folder.path / f"{folder.facts['preset']}.safetensors"
    if not weights.is_file():
        raise AutolabelError(f"{folder.path} is the {folder.facts['graph']} graph only")
    return resolve_model(weights, wanted)


def start(frame: BenchFrame, options: BenchOptions, note: Note) -> Session:
    """Load the model that is measured."""
    name, _ = choose_backend(options.backend)
    precision = precision_for(name, options.precision)
    note(f"loading {options.model}")
    folder: ModelFolder | None = None
    model: str | Path = options.model
    if name != "torch":  # which runs modules, not exported graphs
        folder = as_graph(model, Wanted(precision, cache=options.cache, progress=note))
        model = folder.path
    backend = load_backend(
        model, name, precision, close_ups=False, cache=options.cache,
        progress=note,
    )  # fmt: skip
    return Session(options, frame, note, name, precision, folder, Segmenter(backend))
