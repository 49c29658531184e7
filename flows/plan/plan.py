"""A run's plan: what was found, what made it, and what is there."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from flows.params import LabelParams
from flows.plan.decide import Standing, Survey
from sam2_core.backend_choice import refuse_unless_usable
from sam2_core.labels_version import LABELS_VERSION
from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import resolve_detector
from tasks.boxes.imported import Matching
from tasks.dataset.schema import refuse_before_labeling
from tasks.frames.discover import FoundSequence
from tasks.frames.naming import Names
from tasks.masks.model import ModelChoice, choose_model, library_versions
from tasks.passed_over import PassedOver
from tasks.pipeline.run_context import Job, RunContext
from tasks.pipeline.sequence import as_left
from tasks.store import storage
from tasks.store.artifacts import RunStamp
from tasks.store.manifests import ListedManifest, dated_ahead, declare_again
from tasks.store.roots import write_root
from tasks.store.tracks import list_tracked, read_made
from tasks.types import FrameRef

log = logging.getLogger(__name__)
# Frames of a run that is over before Prefect's server would have started.
SMALL = 16


@dataclass(frozen=True)
class Plan:
    """All of a run, before any pixel is read or any mask model loaded.

    Attributes:
        job: what was asked for, and what makes the labels.
        sequences: that were found, with what is there of them.
        matching: of imported boxes with the frames.
        again: manifests to write again before labels are made, in this order: those that a wrong
            clock has dated ahead, and what is complete and had other labels since, of other frames
            or another run.
        kept: sequences that are left as people have reviewed them: name -> frames decided on.
        replaced: how many sequences to label have labels that were made otherwise.
        passed_over: what the sources, and the files of boxes, hold that is not read.

    """

    job: Job
    sequences: tuple[FoundSequence, ...]
    matching: Matching | None = None
    again: tuple[ListedManifest, ...] = ()
    names: Names = field(default_factory=Names)
    kept: Mapping[str, int] = field(default_factory=dict)
    replaced: int = 0
    passed_over: tuple[PassedOver, ...] = ()

    @property
    def missing(self) -> list[FoundSequence]:
        """Sequences that are not complete."""
        return [sequence for sequence in self.sequences if sequence.manifest is None]

    @property
    def is_small(self) -> bool:
        """Whether what it lacks are but a few frames; a video may have as many as are selected."""
        footage = [frame for sequence in self.missing for frame in sequence.frames]
        return (
            sum(1 if isinstance(part, FrameRef) else part.selection.most for part in footage)
            <= SMALL
        )

    @property
    def cameras(self) -> list[str]:
        """Every camera name, in order of first appearance."""
        names = (frame.camera for sequence in self.sequences for frame in sequence.frames)
        return list(dict.fromkeys(names))

    @property
    def frames_to_label(self) -> int:
        """Known frames of the sequences that are not complete."""
        return sum(sequence.planned for sequence in self.missing)


def make_plan(params: LabelParams, context: RunContext | None = None) -> Plan:
    """Find the sequences and compare them with what is already labeled.

    Args:
        params: of the run.
        context: that of the run, where it follows in this process.

    Raises:
        NamedOtherwiseError: frames have another name in the storage, which the sources cannot give.
        AutolabelError: a source, the model, the detector or the boxes are not there or unusable,
            the dataset belongs to another storage, or there is something to label and the backend
            cannot run here.

    """
    job = job_of(params, context)
    survey, run_key = Survey(job), job.stamp.run_key
    every = [(sequence, survey.standing(sequence)) for sequence in survey.sequences()]
    found = [sequence for sequence, standing in every if standing is not Standing.KEPT]
    kept = {
        sequence.sequence_id: survey.reviewed[sequence.sequence_id]
        for sequence, standing in every
        if standing is Standing.KEPT
    }
    is_tracked = survey.complete and params.tracks
    tracked = list_tracked(params.out, run_key) if is_tracked else set()

    def with_labels(sequence: FoundSequence) -> FoundSequence:
        if sequence.key not in survey.complete:
            return sequence
        left = as_left(params.out, run_key, sequence)
        if left.manifest and sequence.key in tracked:
            left = replace(left, tracks_made=read_made(params.out, left.manifest))
        return left

    sequences = tuple(storage.at_once(with_labels, found))
    keys = {sequence.key for sequence in found} & survey.complete
    again = dated_ahead(survey.listed) + [
        manifest
        for manifest in survey.listed
        if manifest.run_key == run_key
        and manifest.key in keys
        and survey.newest[manifest.key[0]] != manifest
    ]
    replaced = sum(standing is Standing.STALE for _, standing in every)
    plan = Plan(
        job, sequences, survey.matching, tuple(again), survey.names, kept, replaced,
        tuple(survey.passed_over),
    )  # fmt: skip
    if plan.missing:  # what is labeled already may be loaded and tracked anywhere
        refuse_unless_usable(job.model.backend)
    refuse_before_labeling(params.dataset_name, params.out)
    return plan


def begin(params: LabelParams, names: Names, again: Iterable[ListedManifest]) -> None:
    """Record a new root of names, and make labels that are there the newest of their sequences.

    Raises:
        AutolabelError: another command recorded another root meanwhile.

    """
    if names.root.address and names.root != names.known:
        try:
            write_root(params.out, names.root, names.known)
        except storage.StorageError as error:  # workers, and their credentials, may differ
            log.warning(
                "the root of names is not recorded, so that other sources may give others: %s",
                error,
            )
    declare_again(params.out, again)


def model_of(params: LabelParams) -> ModelChoice:
    """Find the model of a run.

    Raises:
        AutolabelError: it is not there, or its backend cannot run here.

    """
    found = choose_model(params.model, params.backend, params.precision)
    return replace(found, allow_uncertified=params.allow_uncertified)


def job_of(
    params: LabelParams, context: RunContext | None = None, model: ModelChoice | None = None
) -> Job:
    """Find what makes the labels of a run, without listing any source.

    Args:
        params: of the run.
        context: that of the run, where it follows in this process.
        model: where it is chosen already.

    Raises:
        AutolabelError: the model, the detector or the boxes are not there or unusable.

    """
    context, model = context or RunContext(), model or model_of(params)
    version, detects = "", not params.boxes
    if params.boxes:
        imported = context.imported(params.boxes, params.box_names or "")
        boxes, version = imported.stamp, imported.version
    else:
        if params.wanted_classes or params.detector:  # a file of no form is refused now
            context.detectors.load(params.detector_name).class_mask(params.wanted_classes)
        boxes = resolve_detector(params.detector_name).stamp
    versions = library_versions(model.backend, detects=detects)
    parameters = params.deciding()
    if params.follow:
        from tasks.masks.follow import following_parameters

        parameters |= following_parameters(model, params.chunk_frames)
    stamp = RunStamp(boxes, model.stamp, parameters, LABELS_VERSION, versions=versions)
    return Job(params, stamp, model, version, context=context)


def check_writable(out_uri: str) -> None:
    """Fail before hours of work when nothing can be written.

    Raises:
        AutolabelError: why not.

    """
    if storage.is_local(out_uri) and storage.local_path(out_uri).is_file():
        raise AutolabelError(f"--out {out_uri} is a file: name a folder, which need not be there")
    probe = storage.join(out_uri, ".autolabel-writable")
    try:
        storage.write_bytes(probe, b"ok\n")
    except AutolabelError as error:
        raise AutolabelError(f"--out cannot be used: {error}") from error
    with contextlib.suppress(storage.StorageError):  # who may write may not delete, perhaps
        storage.delete(probe)
