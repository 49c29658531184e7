"""What the parts of a benchmark run share: the frame, the options and the loaded model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from lab.bench.frame import BenchFrame
from lab.bench.outlines import OutlinedBackend
from lab.bench.peers import PEERS
from lab.bench.published import PublishedDecoderOnly
from lab.bench.timing import Note
from sam2_core.backend_choice import choose_backend, precision_for
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.protocol import Backend
from sam2_core.find_weights import Wanted
from sam2_core.load import load_backend, resolve_model
from sam2_core.presets import preset_named
from sam2_core.segmenter import Segmenter
from sam2_core.types import AutolabelError


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Attributes:
        model: as in `resolve_model`.
        backend: as in `load_backend`.
        precision: "auto", "fp32" or "fp16".
        threads: CPU threads, all cores when None.
        repeats: rounds of every comparison.
        budget_s: of each section; a section stops repeating when it is spent.
        peers: which of `PEERS` to run.
        decoder_chunk: as in `Segmenter`.
        encoder_batch: as in `Segmenter`.
        cache: cache folder.

    """

    model: str
    backend: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    repeats: int = 10
    budget_s: float = 60.0
    peers: tuple[str, ...] = tuple(PEERS)
    decoder_chunk: int | None = None
    encoder_batch: int | None = None
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
        """What whole frames are timed with."""
        return self.of_frames(self.backend) if self.random else self.segmenter

    def of_frames(self, backend: Backend) -> Segmenter:
        """Return a segmenter of whole frames by another backend, in calls of the same sizes."""
        return Segmenter(
            OutlinedBackend(backend) if self.random else backend,
            decoder_chunk=self.segmenter.decoder_chunk,
            encoder_batch=self.segmenter.encoder_batch,
        )

    @cached_property
    def close_ups(self) -> Segmenter | None:
        """The model with each box in a crop of its own, where it has such graphs."""
        size = preset_named(self.preset).close_up_size if self.folder is None else 0
        if self.folder is not None:
            size = self.folder.facts.get("close_up_size", 0)
        if not size or self.graph == "published":
            return None
        self.note("loading close-ups")
        backend = load_backend(
            self.options.model if self.folder is None else self.folder.path, self.backend_name,
            self.precision, threads=self.options.threads, close_ups=True,
            cache=self.options.cache, progress=self.note,
        )  # fmt: skip
        return Segmenter(OutlinedBackend(backend) if self.random else backend)

    @property
    def preset(self) -> str:
        """Name of the measured model's preset."""
        return self.backend.info.stamp.name.split("/")[0]

    @property
    def graph(self) -> str:
        """Graph that is measured: restructured, or published where it was asked for by path."""
        return self.backend.info.stamp.name.split("/")[-1]

    def load(self, graph: str) -> Backend:
        """Load this model again, as another graph."""
        model: str | Path = self.options.model
        if self.folder is not None:
            wanted = Wanted(self.precision, graph, self.options.cache, self.note)
            # A folder named by its path has its other graphs beside it.
            beside = self.folder.path.parent / wanted.variant
            folder = resolve_model(beside if (beside / "model.json").is_file() else model, wanted)
            if folder.facts["graph"] != graph:
                raise AutolabelError(f"{folder.path} is the {folder.facts['graph']} graph only")
            model = folder.path
        return load_backend(
            model, self.backend_name, self.precision, graph, cache=self.options.cache,
            threads=self.options.threads, close_ups=False,
            progress=self.note,
        )  # fmt: skip

    def published_decoder(self) -> PublishedDecoderOnly | None:
        """Return the published decoder where it lies beside the restructured one."""
        if self.folder is None or self.backend.info.device != "cpu":
            return None
        path = self.folder.path / "decoder_published.onnx"
        if self.graph == "published" or not path.is_file():
            return None
        return PublishedDecoderOnly(path, self.folder, self.options.threads)

    def noting(self, prefix: str) -> Note:
        """Return a note that says which part of the run it is about."""
        return lambda text: self.note(f"{prefix}: {text}")


def _restructured(model: str | Path, wanted: Wanted) -> ModelFolder:
    """Resolve a model; one that comes as the published graph is exported restructured, with torch.

    That takes a minute or two once; the export stays in the cache.
    """
    folder = resolve_model(model, wanted)
    weights = folder.path / f"{folder.facts['preset']}.safetensors"
    installed = all(find_spec(package) for package in ("torch", "onnxscript"))
    if folder.facts["graph"] != wanted.graph and weights.is_file() and installed:
        return resolve_model(weights, wanted)
    return folder


def start(frame: BenchFrame, options: BenchOptions, note: Note) -> Session:
    """Load the model that is measured."""
    name, _ = choose_backend(options.backend)
    precision = precision_for(name, options.precision)
    note(f"loading {options.model}")
    folder: ModelFolder | None = None
    model: str | Path = options.model
    if name != "torch":  # which runs modules, not exported graphs
        folder = _restructured(model, Wanted(precision, cache=options.cache, progress=note))
        model = folder.path
    backend = load_backend(
        model, name, precision, threads=options.threads, close_ups=False, cache=options.cache,
        progress=note,
    )  # fmt: skip
    segmenter = Segmenter(
        backend, decoder_chunk=options.decoder_chunk, encoder_batch=options.encoder_batch,
    )  # fmt: skip
    return Session(options, frame, note, name, precision, folder, segmenter)
