"""The last step of a sequence: its labels into FiftyOne, and the record that they are there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tasks.dataset.loaded import loaded_manifests, remember_load
from tasks.observe.progress import LOAD
from tasks.pipeline.outcome import SequenceOutcome
from tasks.pipeline.run_context import Job
from tasks.store.manifests import Fresh, Manifest, withdrawn_if_damaged
from tasks.wording import counted

if TYPE_CHECKING:
    from tasks.load.into_fiftyone import LoadReport

log = logging.getLogger(__name__)


def prepare_dataset(job: Job, cameras: Sequence[str]) -> frozenset[str]:
    """As `prepare_load`, of a run's dataset; in the loader where there is one."""
    values = (job.dataset or "", tuple(cameras), job.out_uri)
    if job.context.loader is None:
        return prepare_load(*values)
    from tasks.dataset.database import ensure_database

    ensure_database()  # ours ends with this process, not with the loader
    held: frozenset[str] = job.context.loader.run(prepare_load, *values)
    return held


def prepare_load(dataset: str, cameras: Sequence[str], out_uri: str) -> frozenset[str]:
    """Make a dataset ready for loads; returns the manifests that it holds already."""
    from tasks.load import prepare

    prepare.prepare_dataset(dataset, cameras, out_uri)
    return frozenset(loaded_manifests(dataset))


def load_sequence(job: Job, outcome: SequenceOutcome, loaded: frozenset[str]) -> SequenceOutcome:
    """Load a sequence's labels into FiftyOne, unless it is not complete or there already."""
    manifest, loader = outcome.manifest, job.context.loader
    if manifest is None or outcome.is_in(loaded):
        return outcome
    values = (job.dataset or "", job.out_uri, manifest)
    fresh = job.context.fresh
    report = loader.run(load_labels, *values) if loader else load_labels(*values, fresh)
    frames = counted(manifest.frames - manifest.failed, "frame")
    log.info("%s loaded into %s", frames, job.dataset)
    job.context.progress.advance(LOAD, manifest.frames)
    seconds = outcome.seconds | {LOAD: report.seconds}
    return replace(outcome, seconds=seconds, left_out=report.changed)


def load_labels(
    dataset: str, out_uri: str, manifest: Manifest, fresh: Fresh | None = None
) -> LoadReport:
    """Load a labeled sequence into FiftyOne; the frames that it has are brought here first.

    With frames that are left out, as their pictures have changed, it does not count as loaded: the
    next run loads it again.

    Raises:
        AutolabelError: storage or the database cannot be used, or labels are damaged.

    """
    from tasks.load.into_fiftyone import load_sequence

    with withdrawn_if_damaged(out_uri, manifest):
        report = load_sequence(dataset, out_uri, manifest, fresh)
    remember_load(dataset, manifest, whole=not report.changed)
    return report
