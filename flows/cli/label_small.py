"""A few frames, labeled without Prefect: its server takes longer to start than they take.

The steps are those of every run, one after another. Meanwhile the detector, the mask model and
FiftyOne are made ready side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from flows.plan.plan import Plan
from tasks.observe.progress import CHECK, DETECT, DOWNLOAD, LOAD, OPEN, SEGMENT, TRACK
from tasks.pipeline.check import check_sequence
from tasks.pipeline.chunk import ChunkState, Job, detect_chunk, download_chunk, segment_chunk
from tasks.pipeline.load import load_labels, prepare_load
from tasks.pipeline.open import Opened, open_part
from tasks.pipeline.outcome import (
    SequenceOutcome,
    SequencePart,
    complete_before,
    outcome_so_far,
    with_error,
    with_loaded,
)
from tasks.pipeline.passes import OF_COMMAND, in_passes
from tasks.pipeline.track import track_sequence
from tasks.types import Footage, FrameRef

MOST_FRAMES = 16


def is_small(plan: Plan) -> bool:
    """Whether what a plan lacks are but a few frames; a video may have as many as are selected."""
    return sum(_most(frame) for one in plan.missing for frame in one.found.frames) <= MOST_FRAMES


def _most(one: Footage) -> int:
    """Return how many frames there may be at most."""
    if isinstance(one, FrameRef):
        return 1
    chosen = one.selection
    if chosen.stop is None:
        return MOST_FRAMES + 1
    return len(range(chosen.start, chosen.stop, chosen.step))


def label_small(plan: Plan, job: Job) -> list[SequenceOutcome]:
    """Label what a small plan lacks and load it, here and now; the outcomes in order."""
    dataset = plan.params.dataset_name
    with ThreadPoolExecutor(thread_name_prefix="ready") as pool:
        if plan.missing:
            for make_ready in _models(job):
                pool.submit(make_ready)
        prepared = pool.submit(_prepare, dataset, plan.cameras, job.out_uri) if dataset else None

        def attempt(todo: Sequence[int]) -> dict[int, SequenceOutcome]:
            parts = plan.sequences
            return {one: _Way(job, parts[one]).to_the_end(dataset, prepared) for one in todo}

        return in_passes(attempt, len(plan.sequences), OF_COMMAND)


def _models(job: Job) -> list[Callable[[], object]]:
    """Return functions that load the models early; their errors appear again later."""
    tools, backend, stamp = job.tools, job.model.backend, job.stamp.detector
    masks = [lambda: tools.segmenters.load(job.model)]
    if not job.detector:
        return list(masks)
    return [lambda: tools.detectors.load(job.detector, stamp=stamp, backend=backend), *masks]


def _prepare(dataset: str, cameras: list[str], out_uri: str) -> frozenset[str]:
    from tasks.dataset.database import ensure_database
    from tasks.dataset.lazy_imports import import_around_fiftyone

    with ThreadPoolExecutor(1) as pool:
        database = pool.submit(ensure_database)
        import_around_fiftyone()
        database.result()
    return prepare_load(dataset, cameras, out_uri)


class _Way:
    """A sequence on its way through the steps."""

    def __init__(self, job: Job, part: SequencePart) -> None:
        self._job, self._part, self._stage = job, part, OPEN
        self._opened: Opened | None = None
        self._states: list[ChunkState] = []
        self._outcome: SequenceOutcome | None = None

    def to_the_end(
        self, dataset: str | None, prepared: Future[frozenset[str]] | None
    ) -> SequenceOutcome:
        """Label and load the sequence; failures are in its outcome."""
        error = None
        try:
            self._outcome = self._labeled()
            self._stage = TRACK
            if not self._part.tracked:
                self._outcome = track_sequence(self._job, self._outcome)
            if dataset and prepared:
                self._stage = LOAD
                self._outcome = self._loaded(self._outcome, dataset, prepared.result())
        except Exception as caught:  # noqa: BLE001 - one sequence fails, not the run
            error = caught
        outcome = self._outcome or self._so_far()
        if error:
            outcome = with_error(outcome, self._stage, error)
        self._job.tools.progress.finish(self._part.name, outcome.text, good=outcome.good)
        return outcome

    def _labeled(self) -> SequenceOutcome:
        if self._part.manifest:
            return complete_before(self._part)
        self._opened = open_part(self._job, self._part)
        for chunk in self._opened.chunks:
            self._stage = DOWNLOAD
            state = download_chunk(self._job, chunk, self._opened.listed)
            self._stage = DETECT
            state = detect_chunk(self._job, state)
            self._stage = SEGMENT
            self._states.append(segment_chunk(self._job, state))
        self._stage = CHECK
        return check_sequence(self._job, self._opened, self._states)

    def _loaded(
        self, outcome: SequenceOutcome, dataset: str, known: frozenset[str]
    ) -> SequenceOutcome:
        manifest = outcome.manifest
        if manifest is None or outcome.is_in(known):
            return outcome
        loaded = load_labels(dataset, self._job.out_uri, manifest)
        self._job.tools.progress.advance(LOAD, manifest.frames)
        return with_loaded(outcome, loaded)

    def _so_far(self) -> SequenceOutcome:
        failures = self._opened.failures if self._opened else ()
        return outcome_so_far(self._part.name, self._states, failures)
