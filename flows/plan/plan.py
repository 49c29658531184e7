"""What a run has to do: sequences found, what made them before, what is already there."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flows.params import LabelParams
from flows.plan.names import Stored, keep_names, names_of
from sam2_core.backend_choice import refuse_unless_usable
from sam2_core.types import AutolabelError
from tasks.boxes.detectors import resolve_detector
from tasks.boxes.imported import Matching
from tasks.dataset.loaded import refuse_before_labeling
from tasks.frames.decisive_code import box_code
from tasks.frames.discover import Discovered, discover, refuse_output_inside
from tasks.frames.naming import Names
from tasks.masks.model import ModelChoice, choose_model, library_versions, verdict_on
from tasks.pipeline.outcome import SequencePart
from tasks.pipeline.run_context import Job, RunContext
from tasks.pipeline.sequence import as_left
from tasks.store import storage
from tasks.store.artifacts import RunStamp
from tasks.store.manifests import Key, ListedManifest, dated_ahead, declare_again
from tasks.store.tracks import list_tracked, read_made
from tasks.types import FrameRef, FrameSelection

# Frames of a run that is over before Prefect's server would have started.
SMALL = 16


@dataclass(frozen=True)
class Plan:
    """All of a run, before any pixel is read or any mask model loaded.

    Attributes:
        params: what was asked for.
        stamp: what makes the labels.
        model: what makes the masks.
        sequences: that were found, with what is there of them.
        matching: of imported boxes with the frames.
        again: manifests to write again before labels are made, in this order: those that a wrong
            clock has dated ahead, and what is complete and had other labels since, of other frames
            or another run.

    """

    params: LabelParams
    stamp: RunStamp
    model: ModelChoice
    sequences: tuple[SequencePart, ...]
    matching: Matching | None = None
    again: tuple[ListedManifest, ...] = ()
    names: Names = field(default_factory=Names)

    @property
    def missing(self) -> list[SequencePart]:
        """Sequences that are not complete."""
        return [one for one in self.sequences if one.manifest is None]

    @property
    def is_small(self) -> bool:
        """Whether what it lacks are but a few frames; a video may have as many as are selected."""
        footage = [frame for one in self.missing for frame in one.found.frames]
        return (
            sum(1 if isinstance(one, FrameRef) else one.selection.most for one in footage) <= SMALL
        )

    @property
    def cameras(self) -> list[str]:
        """Every camera name, in order of first appearance."""
        names = (frame.camera for one in self.sequences for frame in one.found.frames)
        return list(dict.fromkeys(names))

    @property
    def frames_to_label(self) -> list[int]:
        """Return the known frames of each sequence; none of those that are complete."""
        return [
            0 if one.manifest else sum(isinstance(frame, FrameRef) for frame in one.found.frames)
            for one in self.sequences
        ]

    def begin(self) -> None:
        """Record new names, and make the labels that are there the newest of their sequences.

        Raises:
            AutolabelError: another command made names of the same frames meanwhile, or the dataset
                belongs to another storage.

        """
        if self.params.dataset_name:
            refuse_before_labeling(self.params.dataset_name, self.params.out)
        keep_names(self.params.out, self.names)
        declare_again(self.params.out, self.again)

    def facts(self) -> dict[str, Any]:
        """Return what made the labels and where they are, for the summary."""
        allowed = self.params.allow_uncertified
        return {
            "out": self.params.out,
            "run_key": self.stamp.run_key,
            "model": asdict(self.model.stamp),
            "boxes": self.stamp.detector,
            **({"imported": self.matching.as_json()} if self.matching else {}),
            **({"allow_uncertified": verdict_on(self.model)} if allowed else {}),
        }


def make_plan(params: LabelParams, context: RunContext | None = None) -> Plan:
    """Find the sequences and compare them with what is already labeled.

    Args:
        params: of the run.
        context: that of the run, where it follows in this process.

    Raises:
        NamedOtherwiseError: frames have another name in the storage, which the sources cannot give.
        AutolabelError: a source, the model, the detector or the boxes are not there or unusable, or
            there is something to label and the backend cannot run here.

    """
    selection = FrameSelection.parse(params.frames)
    refuse_output_inside(params.out, params.sources)
    names = names_of(params)
    found = list(discover(params.sources, selection, params.sequence, params.format, names))
    model = model_of(params)
    context = context or RunContext()
    matching = matching_of(params, context)
    if matching:
        found = [matching.with_boxes(one) for one in found]
        matching.refuse_nothing(params.wanted_classes)
    stamp = stamp_of(params, model, context)
    stored = Stored(params.out, stamp.run_key, names)
    is_tracked = stored.complete and params.tracks
    tracked = list_tracked(params.out, stamp.run_key) if is_tracked else set()

    def planned(one: Discovered) -> SequencePart:
        part, key = SequencePart(one, selection, params.chunk_frames), _key(one)
        if key in stored.complete:
            part = as_left(params.out, stamp.run_key, part)
        if part.manifest and key in tracked:
            part = replace(part, tracks_made=read_made(params.out, part.manifest))
        return part

    sequences = tuple(storage.at_once(planned, found))
    for part in sequences:
        if part.manifest is None:
            stored.refuse_namesake(part.found.sequence)
    keys = set(map(_key, found)) & stored.complete
    again = dated_ahead(stored.listed)
    for one in stored.listed:
        if one.run_key == stamp.run_key and one.key in keys and stored.newest[one.key[0]] != one:
            again.append(one)
    plan = Plan(params, stamp, model, sequences, matching, tuple(again), names)
    if plan.missing:  # what is labeled already may be loaded and tracked anywhere
        refuse_unless_usable(model.backend)
    return plan


def _key(one: Discovered) -> Key:
    return one.sequence.sequence_id, one.content_key


def model_of(params: LabelParams) -> ModelChoice:
    """Find the model of a run.

    Raises:
        AutolabelError: it is not there, or its backend cannot run here.

    """
    found = choose_model(
        params.model, params.backend, params.precision, triton_urls=params.triton_urls
    )
    return replace(found, allow_uncertified=params.allow_uncertified)


def matching_of(params: LabelParams, context: RunContext) -> Matching | None:
    """Open the boxes of a run, where they are imported, to match frames with them.

    Raises:
        AutolabelError: they are not there or unusable.

    """
    if not params.boxes:
        return None
    return Matching(context.imported(params.boxes, params.box_names or ""))


def stamp_of(
    params: LabelParams, model: ModelChoice | None = None, context: RunContext | None = None
) -> RunStamp:
    """Return what decides the labels, without listing any source.

    Args:
        params: of the run.
        model: where it is chosen already.
        context: that of the run, which may hold its boxes or its detector.

    Raises:
        AutolabelError: the model, the detector or the boxes are not there or unusable.

    """
    model, context = model or model_of(params), context or RunContext()
    if params.boxes:
        boxes = context.imported(params.boxes, params.box_names or "").stamp
    else:
        if params.wanted_classes:
            context.detectors.load(params.detector_name).class_mask(params.wanted_classes)
        boxes = resolve_detector(params.detector_name).stamp
    code = box_code(imported=bool(params.boxes))
    versions = library_versions(model.backend, detects=not params.boxes)
    return RunStamp(boxes, model.stamp, params.deciding(), code, versions=versions)


def job_of(plan: Plan, context: RunContext, *, counts_attempts: bool = False) -> Job:
    """Return what every step needs to know."""
    params = plan.params
    boxes, box_names = params.boxes or "", params.box_names or ""
    return Job(
        out_uri=params.out,
        stamp=plan.stamp,
        model=plan.model,
        detector="" if params.boxes else params.detector_name,
        boxes_uri=boxes,
        box_names_uri=box_names,
        boxes_version=context.imported(boxes, box_names).version if boxes else "",
        classes=params.wanted_classes,
        min_score=params.least_score,
        tiles=params.tiles,
        rules=params.mask_rules,
        tracks=params.tracks,
        fill_gaps=params.fill_gaps,
        counts_attempts=counts_attempts,
        dataset=params.dataset_name,
        context=context,
    )


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
