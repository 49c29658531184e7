"""An export from beginning to end: which labels are chosen, as a stream of frames, and written.

The labels are a run's, or a dataset's with what people decided.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sam2_core.types import AutolabelError, Masks
from tasks.dataset.documents import Values, detections_of, sample_id, to_values
from tasks.dataset.layout import sample_collection
from tasks.dataset.recorded_frames import (
    find_pictures,
    moments_of,
    recorded_frames,
    recorded_labels,
    recorded_parts,
)
from tasks.dataset.schema import DONE, LOG_FIELD, MACHINE_FIELD, REVIEWED_FIELD
from tasks.export.annotations import CocoWriter, T4Writer, YoloWriter, refuse_other_splits
from tasks.export.overlay import QUALITY, OverlayWriter, caption, paint
from tasks.export.pngs import CityscapesWriter, DavisWriter, MotsWriter, PngWriter
from tasks.export.review_tools import CvatWriter, FiftyOneWriter, LabelStudioWriter
from tasks.export.types import (
    Classes,
    DistinctNames,
    ExportFrame,
    ExportNotes,
    ImageMode,
    Instance,
    Sink,
    Writer,
    stem_of,
)
from tasks.frames.discover import refuse_output_inside
from tasks.frames.identity import frame_key
from tasks.frames.images import as_jpeg
from tasks.frames.sources import UnknownSourceError, refuse_unknown, remember_sources
from tasks.review.actions import frame_of
from tasks.review.decided import NOT_RIGHT, is_decided, is_empty, rows_of
from tasks.review.events import standing_entries, unread_decisions
from tasks.review.set_aside import compare_files, finishing, harvest, last_decisions
from tasks.risk.compute_risk import Judgement, compute_risk, compute_risk_of_parts
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import (
    COMPLETE,
    PARTIAL,
    ChunkRecord,
    Manifest,
    list_manifests,
    list_runs,
    newest_manifests,
    read_reports,
    withdrawn_if_damaged,
)
from tasks.store.roots import read_root
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import read_tracks
from tasks.types import FrameRef, NothingFoundError

log = logging.getLogger(__name__)
EMPTY = "empty"
# What people can have decided; of frames, that nothing is there.
STATES = ("accepted", "corrected", "merged", "edited", "passed", "rejected", "deleted", EMPTY)


@dataclass(frozen=True)
class Decided:
    """What people hold to be right on one frame.

    Attributes:
        instances: accepted, corrected and added labels, and those of a finished frame.
        remade: labels that were followed and are undecided since.
        settled: positions of the machine's boxes that these take the place of, or that are wrong.
        reviewed: whether a decision stands, of those that were asked for.
        empty: whether a person has confirmed that nothing is there.
        left_out: how many labels with a decision are no instance, by why.

    """

    instances: tuple[Instance, ...]
    remade: tuple[Instance, ...]
    settled: frozenset[int]
    reviewed: bool
    empty: bool = False
    left_out: Mapping[str, int] = field(default_factory=dict)


UNDECIDED_LABEL = "undecided label"
AS_BACKGROUND = "objects left undecided look like background to who trains on the files"
UNDECIDED = Decided((), (), frozenset(), reviewed=False)
_ALL_BOXES = frozenset(range(1 << 16))


def decisions(
    dataset: Any, manifest: Manifest, labeled: Sequence[LabeledFrame], choice: Choice
) -> Mapping[int, Decided]:
    """Decisions by frame index, without those set aside; frames without a review are not there."""
    index_of = {
        sample_id(frame_key(frame.frame, manifest.frames_uri)): frame.frame for frame in labeled
    }
    found = {}
    for sample in sample_collection(dataset).find({"_id": {"$in": list(index_of)}}):
        frame = index_of[sample["_id"]]
        looked_at = sample.get(LOG_FIELD) or sample.get("review_status") == DONE
        if looked_at and sample.get("frame_etag") in {None, "", frame.etag}:
            found[frame.index] = _decided(sample, manifest.stamp.labels_key, choice)
    return found


def _decided(sample: Mapping[str, Any], run_key: str, choice: Choice) -> Decided:
    rows, done, last = list(rows_of(sample)), finishing(sample), last_decisions(sample)
    empty, reviewed = is_empty(sample, rows), is_decided(sample)
    wanted = choice.decisions
    kept: list[Instance] = []
    left_out = Counter[str]()
    for row in rows:
        what, is_theirs = row["decision"], choice.is_by(row["reviewer"])
        if is_theirs and (what in wanted if wanted else what not in NOT_RIGHT):
            kept.append(_instance(row))
            left_out["label merged into another"] += max(0, len(row["sources"]) - 1)
        else:
            left_out[f"{what} label{'' if is_theirs else ' of another reviewer'}"] += 1
    if wanted:
        reviewed = bool(kept) or (empty and EMPTY in wanted and choice.is_by(done.get("by")))
    elif choice.reviewers:
        reviewed = any(choice.is_by(who) for who in (done.get("by"), *_people(sample)))
    # Nothing was there, or decided on another run's labels: those alone count.
    alone = Decided(tuple(kept), (), _ALL_BOXES, reviewed, empty, left_out)
    if empty and done.get("action") == "nothing_here":
        return alone
    if sample.get("run_key") != run_key:
        return alone if reviewed else replace(alone, settled=frozenset())
    about = {source for row in rows for source in row["sources"]}
    about |= {label for label, (decision, _) in last.items() if decision}
    standing = standing_entries(sample)
    again = {label for entry in standing for label in entry.get("overrides") or {}} - about
    machine = {str(label["_id"]): label for label in detections_of(sample, MACHINE_FIELD)}
    size_hw = frame_of(sample).size_hw
    remade = tuple(
        _instance(to_values(label, size_hw) | {"track_id": label.get("index")})
        for name, label in machine.items()
        if name in again
    )
    position: dict[str, Any] = {name: label.get("box_index") for name, label in machine.items()}
    settled = {position[name] for name in about | again if position.get(name) is not None}
    return replace(alone, remade=remade, settled=frozenset(settled))


def _people(sample: Mapping[str, Any]) -> Iterator[str]:
    """Yield who has decided, of each label that a decision stands on."""
    for decision, who in last_decisions(sample).values():
        if decision:
            yield who["reviewer"]
    yield from (label.get("reviewer") or "" for label in detections_of(sample, REVIEWED_FIELD))


def _instance(row: Values) -> Instance:
    left, top, right, bottom = row["box_xyxy_px"]
    score = row.get("confidence")
    return Instance(
        row["label"],
        1.0 if score is None else float(score),
        (float(left), float(top), float(right), float(bottom)),
        row["rle"].encode("ascii"),
        int(row["area_px"]),
        row.get("track_id"),
        float(row.get("risk") or 0.0),
        float(row.get("predicted_iou") or 0.0),
        row["decision"],
        source=_known(row, "source", "undetected_frames"),
        review=_known(row, "changed", "reviewer", "reviewed_at"),
    )


def _known(row: Values, *names: str) -> Values:
    return {name: row[name] for name in names if row.get(name)}


@dataclass(frozen=True)
class Choice:
    """Which labels are exported, and under which names.

    Attributes:
        classes: only these, after the map; all if empty.
        class_map: new name by old name.
        min_score: least score of a box.
        risk_below: only labels of less risk; decided ones pass.
        reviewed: only frames that people looked at, and of those what they hold to be right.
        decisions: only labels with these decisions, of `STATES`, and their frames; all if empty.
        reviewers: only decisions of these people, and their frames; of all if empty.
        splits: share of the sequences by split's name; empty for no splits.
        run_key: only this run's labels; by default the newest of each sequence.
        track_classes: labels have the class of their track, not what was detected in their frame.

    """

    classes: tuple[str, ...] = ()
    class_map: Mapping[str, str] = field(default_factory=dict)
    min_score: float = 0.0
    risk_below: float | None = None
    reviewed: bool = False
    decisions: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()
    splits: Mapping[str, float] = field(default_factory=dict)
    run_key: str = ""
    track_classes: bool = False

    @property
    def decided_only(self) -> bool:
        """Whether undecided labels are left out."""
        return bool(self.reviewed or self.decisions or self.reviewers)

    def is_by(self, who: str | None) -> bool:
        """Whether decisions of a person are asked for."""
        return not self.reviewers or who in self.reviewers


def split_of(sequence_id: str, splits: Mapping[str, float]) -> str:
    """Split of a sequence, from its name alone: it never moves when others come or go."""
    if not splits:
        return ""
    digest = hashlib.sha256(sequence_id.encode()).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64 * sum(splits.values())
    for name, share in splits.items():
        if point < share:
            return name
        point -= share
    return name


def chosen_manifests(
    out_uri: str, run_key: str = "", notes: ExportNotes | None = None
) -> list[Manifest]:
    """Newest manifest of each sequence, by sequence.

    Args:
        out_uri: the run's storage.
        run_key: only this run's.
        notes: gets the sequences whose manifest cannot be read, and why.

    Raises:
        AutolabelError: there is none.

    """
    found, unreadable = newest_manifests(out_uri, run_key)
    for name, error in unreadable.items():
        if notes is None or not found:
            raise error
        notes.unreadable[name] = str(error)
    if not found:
        of_run = f" of run {run_key}" if run_key else ""
        known = ", ".join(list_runs(out_uri.partition("#")[0]))
        raise AutolabelError(
            f"{storage.redact(out_uri)} holds no labeled sequence{of_run}"
            + (f"; name one of its runs as OUT#RUN_KEY: {known}" if known else "")
        )
    return found


def _cameras(manifest: Manifest) -> list[str]:
    return sorted({chunk.camera for chunk in manifest.chunks})


@dataclass(frozen=True)
class _Camera:
    """Names of a camera's files, and the frame that stands for the moment of each of its frames."""

    folders: tuple[str, ...]
    moments: Mapping[tuple[str, int], FrameRef] = field(default_factory=dict)
    stems: DistinctNames = field(default_factory=DistinctNames)

    def stem(self, frame: FrameRef) -> str:
        """Return the name of a frame's picture without its ending; of equal ones it is longer."""
        return self.stems.new(stem_of(frame.uri, frame.index), f"{frame.index:06d}")


class Frames:
    """The frames to export, in order, one sequence and camera after another.

    Args:
        out_uri: the run's storage.
        choice: which labels.
        dataset: with what people decided; None for a run without one.
        pictures: whether to bring the pictures here.
        notes: counts what is left out.
        moments: whether to join the cameras of a moment, as a dataset's groups.

    """

    def __init__(
        self, out_uri: str, choice: Choice, dataset: Any, *, pictures: bool, notes: ExportNotes,
        moments: bool = False,
    ) -> None:  # fmt: skip
        self._out_uri, self._choice, self._dataset = out_uri, choice, dataset
        self._pictures, self._notes, self._moments = pictures, notes, moments
        self.manifests = chosen_manifests(out_uri, choice.run_key, notes)
        self.set_aside = ""
        if dataset is not None:
            harvest(dataset)  # what people decided elsewhere
            aside = [compare_files(dataset).text(), *unread_decisions(dataset)]
            self.set_aside = "; ".join(filter(None, aside))  # what counts no more

    def __iter__(self) -> Iterator[ExportFrame]:
        sequences = DistinctNames()
        for manifest in list(self.manifests):
            folder = sequences.new(manifest.sequence_id)
            try:
                with withdrawn_if_damaged(self._out_uri, manifest):
                    self._refuse_foreign(manifest)
            except (IncompleteArtifactError, UnknownSourceError) as error:
                self.manifests.remove(manifest)
                if not self.manifests:
                    raise
                self._notes.unreadable[manifest.sequence_id] = str(error)
                continue
            yield from self._of_sequence(manifest, folder)

    def _refuse_foreign(self, manifest: Manifest) -> None:
        """Read a sequence before any frame of it is written: its last chunk may be the bad one."""
        tracks = read_tracks(self._out_uri, manifest)
        for camera in _cameras(manifest):
            for labeled in recorded_parts(self._out_uri, manifest, camera, tracks):
                if self._pictures:
                    refuse_unknown(frame.frame for frame in labeled)

    def _of_sequence(self, manifest: Manifest, folder: str) -> Iterator[ExportFrame]:
        tracks, names = read_tracks(self._out_uri, manifest), DistinctNames()
        recorded = recorded_frames(self._out_uri, manifest) if self._moments else []
        moments = {
            (frame.camera, frame.index): recorded[row]
            for frame, row in zip(recorded, moments_of(recorded), strict=True)
        }
        for name in _cameras(manifest):
            parts = recorded_parts(self._out_uri, manifest, name, tracks)
            camera = _Camera((folder, names.new(name)) if name else (folder,), moments)
            for labeled, judged in compute_risk_of_parts(parts):
                yield from self._of_chunk(manifest, labeled, judged, camera)

    def of_chunk(self, manifest: Manifest, chunk: ChunkRecord) -> Iterator[ExportFrame]:
        """Yield the frames of one chunk alone; risk is judged within it."""
        tracks = read_tracks(self._out_uri, manifest)
        labeled = recorded_labels(self._out_uri, chunk, manifest)
        labeled = [tracks.joined(frame) for frame in labeled] if tracks else labeled
        camera = _Camera((manifest.sequence_id, *filter(None, [chunk.camera])))
        yield from self._of_chunk(manifest, labeled, compute_risk(labeled), camera)

    def _of_chunk(
        self, manifest: Manifest, labeled: Sequence[LabeledFrame], judged: Sequence[Judgement],
        camera: _Camera,
    ) -> Iterator[ExportFrame]:  # fmt: skip
        decided: Mapping[int, Decided] = {}
        if self._dataset is not None:
            decided = decisions(self._dataset, manifest, labeled, self._choice)
        rows = [
            (frame, judgement, decided.get(frame.frame.index, UNDECIDED))
            for frame, judgement in zip(labeled, judged, strict=True)
            if frame.failure is None
        ]
        self._notes.leave_out("frame failed", len(labeled) - len(rows))
        if self._choice.decided_only:
            others = [len(frame.boxes) for frame, _, decision in rows if not decision.reviewed]
            self._notes.leave_out("frame without a decision that counts", len(others))
            self._notes.leave_out("label on such a frame", sum(others))
            rows = [row for row in rows if row[2].reviewed]
        pictures = find_pictures([frame.frame for frame, _, _ in rows] if self._pictures else ())
        split = split_of(manifest.sequence_id, self._choice.splits)
        model = manifest.stamp.model.name if manifest.stamp.model else ""
        for labels, judgement, decision in rows:
            frame = labels.frame
            if frame.uri in pictures.changed:
                self._notes.leave_out("frame whose picture has changed since")
                continue
            instances = tuple(self._instances(labels, judgement, decision))
            is_finished = len(decision.settled) >= len(labels.boxes)
            if self._choice.decided_only and not instances and not is_finished:
                self._notes.leave_out("frame that is not finished, with nothing held to be right")
                continue
            yield ExportFrame(
                frame.sequence_id, frame.camera, frame.index, frame.timestamp_ns, frame.uri,
                frame.size_hw, split, model, camera.stem(frame), instances,
                frame_key(frame, manifest.frames_uri), camera.folders,
                camera.moments.get((frame.camera, frame.index), frame),
                pictures.of(frame) if self._pictures else None,
                confirmed_empty=decision.empty,
            )  # fmt: skip

    def _instances(
        self, frame: LabeledFrame, judgement: Judgement, decided: Decided
    ) -> Iterator[Instance]:
        """Choose labels of a frame: the machine's undecided ones, and people's."""
        found = list(decided.instances)
        for why, count in decided.left_out.items():
            self._notes.leave_out(why, count)
        undecided = [row for row in range(len(frame.boxes)) if row not in decided.settled]
        if self._choice.decided_only:
            self._notes.leave_out(UNDECIDED_LABEL, len(undecided) + len(decided.remade))
        elif frame.masks is not None:
            found += decided.remade
            found += [self._instance(frame, frame.masks, judgement, row) for row in undecided]
        for instance in found:
            self._notes.classes.add(instance.label)
            mapped = self._choice.class_map.get(instance.label, instance.label)
            why = self._why_not(instance, mapped)
            if why:
                self._notes.leave_out(why)
            else:
                yield replace(instance, label=mapped)

    def _instance(
        self, frame: LabeledFrame, masks: Masks, judgement: Judgement, number: int
    ) -> Instance:
        boxes = frame.boxes
        names = (self._choice.track_classes and frame.track_labels) or boxes.labels
        self._notes.named_as_track += names[number] != boxes.labels[number]
        left, top, right, bottom = (float(side) for side in boxes.xyxy_px[number])
        return Instance(
            names[number],
            float(boxes.scores[number]),
            (left, top, right, bottom),
            masks.rle[number],
            int(masks.area_px[number]),
            None if boxes.track_ids is None else int(boxes.track_ids[number]),
            float(judgement.risk[number]),
            float(masks.predicted_iou[number]),
            source=frame.source_of(number),
        )

    def _why_not(self, instance: Instance, label: str) -> str:
        choice = self._choice
        if not instance.area_px:
            return "label without a mask"
        if choice.classes and label not in choice.classes:
            return "class not asked for"
        if instance.decision:
            return ""
        if instance.score < choice.min_score:
            return "score too low"
        if choice.risk_below is not None and instance.risk >= choice.risk_below:
            return "risk too high"
        return ""


def run_named(text: str) -> tuple[str, str]:
    """Return storage and key of a run, named as `OUT` or `OUT#RUN_KEY`; without a key it is ""."""
    out_uri, _, run_key = text.rpartition("#")
    named = out_uri and re.fullmatch(r"[0-9a-f]{20}", run_key)
    return (checked(out_uri), run_key) if named else (checked(text), "")


def source_of(name: str) -> tuple[str, Any]:
    """Tell a run's storage from a dataset: (address, dataset or None).

    A dataset is often called as the folder that it was loaded from: a plain name is the dataset
    then, which has what people decided, and ./NAME the folder. A dataset's labels lie in the
    storage that it was loaded from.

    Raises:
        AutolabelError: it is neither.

    """
    from tasks.dataset import schema
    from tasks.review.events import event_uris, storage_of

    folders, known = storage.list_folders(checked(name)), None
    if schema.is_name(name):
        known = schema.existing_dataset(name)
    if {COMPLETE, PARTIAL} & {*folders}:
        if known is None and schema.is_name(name) and event_uris(name, name):
            raise AutolabelError(
                f"dataset {name} is gone, and what people decided in it is in {name}/reviews: "
                f"`autolabel review rebuild {name} --out {name}` first, or write ./{name} to "
                "export the labels without decisions"
            )
        if known is None or "frame_key" not in known.get_field_schema():  # none of ours
            return name, None
        if storage_of(known) != storage.canonical(name):
            raise AutolabelError(
                f"'{name}' is a folder of labels here, and a dataset of {storage_of(known)}: for "
                f"the folder write ./{name}, for the dataset give the command in another folder"
            )
    elif "/" in name and "labels" in folders:
        raise AutolabelError(
            f"no sequence in {storage.redact(name)} is labeled to its end yet: wait for the run, "
            "or give its command again"
        )
    elif "/" in name:
        raise AutolabelError(f"{storage.redact(name)} holds no labels: name the --out of a run")
    return dataset_source(name)


def dataset_source(name: str) -> tuple[str, Any]:
    """Return where the labels of a dataset lie, and the dataset.

    Raises:
        AutolabelError: there is no such dataset of ours, or it knows no storage.

    """
    from tasks.dataset import schema
    from tasks.review.events import storage_of

    dataset = schema.open_dataset(name)
    out_uri = storage_of(dataset)
    if not out_uri:
        raise AutolabelError(f"dataset '{name}' knows no storage: name the --out of its run")
    # Made by a version that let several share a dataset: of one of them no frame may be left out.
    schema.refuse_other_out(sample_collection(dataset).database, name, out_uri)
    return out_uri, dataset


def uncertified_runs(out_uri: str, manifests: Iterable[Manifest]) -> dict[str, str]:
    """Return the verdict on the engine of each run that was used whatever it is.

    Returns:
        {run_key: the verdict that the run's reports have, several joined, "unknown" for none}.

    """
    stamps = [manifest.stamp for manifest in manifests]
    keys = sorted({stamp.run_key for stamp in stamps if stamp.parameters.get("allow_uncertified")})
    verdicts = {}
    for key in keys:
        found = [report.get("certificate") for report in read_reports(out_uri, key)]
        known = sorted(
            {
                str(certificate["verdict"])
                for certificate in found
                if isinstance(certificate, dict) and "verdict" in certificate
            }
        )
        verdicts[key] = ", ".join(known) or "unknown"
    return verdicts


FORMATS: dict[str, Callable[[Sink, Classes, ExportNotes], Writer]] = {
    "coco": CocoWriter,
    "coco-polygons": partial(CocoWriter, as_polygons=True),
    "yolo": YoloWriter,
    "png": PngWriter,
    "cityscapes": CityscapesWriter,
    "mots": MotsWriter,
    "davis": DavisWriter,
    "t4": T4Writer,
    "cvat": CvatWriter,
    "label-studio": LabelStudioWriter,
    "fiftyone": FiftyOneWriter,
    "overlay": OverlayWriter,
}
NEED_PICTURES, NEED_MOMENTS = frozenset({"overlay"}), frozenset({"t4"})


def _read_later(out_uri: str) -> Iterator[str]:
    """Yield the labels, and the folder that was labeled: the next run labels what is in it."""
    yield out_uri
    with contextlib.suppress(IncompleteArtifactError):  # `label` refuses a record that is damaged
        root = read_root(out_uri)
        if root and root.source:
            yield root.source


def export(
    source: str,
    format_: str,
    target: str,
    choice: Choice,
    *,
    images: ImageMode = "copy",
    sources: Iterable[str] = (),
    on_frame: Callable[[int], object] = lambda _: None,
) -> dict[str, Any]:
    """Write labels in a format; returns the report.

    It is also in `export.json` beside them, but without addresses of this machine: `source`, and
    why sequences cannot be read.

    Equal labels and options give equal files. Only a few frames are in memory at once. What was
    ended before its end is written anew by the same call.

    Args:
        source: `--out` of a run, or a dataset: then what people decided stands in for the
            machine's labels.
        format_: one of FORMATS.
        target: folder or URL; nothing may be there yet.
        choice: which labels, and under which names.
        images: copy pictures beside the labels, link to those of this machine, or leave them out.
        sources: below which pictures may be read that were labeled on another machine.
        on_frame: called with the number of frames done.

    Raises:
        NothingFoundError: decisions are asked for, and there is none.
        AutolabelError: no such source, something is at the target, or a file cannot be written.

    """
    if format_ == "yolo":
        refuse_other_splits(choice.splits)
    out_uri, dataset = source_of(source)
    remember_sources(sources)
    if choice.decided_only and dataset is None:
        raise AutolabelError(
            "decisions are in a dataset: name it instead of the run's folder (NAME is a dataset, "
            "./NAME a folder)"
        )
    refuse_output_inside(checked(target), _read_later(out_uri), "--to")
    notes, classes = ExportNotes(), Classes(choice.classes)
    pictures = images != "none" or format_ in NEED_PICTURES
    frames = Frames(
        out_uri, choice, dataset, pictures=pictures, notes=notes, moments=format_ in NEED_MOMENTS
    )
    counts, states = Counter[str](), Counter[str]()
    splits: Counter[str] = Counter(dict.fromkeys(choice.splits, 0))
    sequences: set[str] = set()
    empty: list[str] = []
    stream = iter(frames)
    first = next(stream, None)
    if first is None and choice.decided_only:  # before a folder looks like an export
        some = choice.decisions or choice.reviewers
        why = "no decision is so" if some else frames.set_aside or "no frame is reviewed yet"
        raise NothingFoundError(f"nothing to export: {why}")
    name = None if dataset is None else dataset.name
    command = repr((storage.canonical(out_uri), name, format_, choice, images))
    with Sink(checked(target), images, command) as sink:
        writer = FORMATS[format_](sink, classes, notes)
        for frame in itertools.chain(() if first is None else (first,), stream):
            writer.add(frame)
            splits[frame.split] += 1
            sequences.add(frame.sequence_id)
            counts["frames"] += 1
            counts["instances"] += len(frame.instances)
            states.update(instance.decision for instance in frame.instances if instance.decision)
            counts["without_labels"] += not frame.instances
            if frame.confirmed_empty:
                empty.append(frame.key)
            counts["without_picture"] += pictures and frame.image is None
            on_frame(counts["frames"])
        facts = writer.close()
        report = {
            "format": format_, "dataset": name,
            "runs": sorted({manifest.stamp.run_key for manifest in frames.manifests}),
            "sequences": len(sequences), "frames": counts["frames"],
            "instances": counts["instances"] - notes.unwritten,
            "frames_without_picture": counts["without_picture"],
            "classes": classes.names, "splits": {k: v for k, v in splits.items() if k},
            "left_out": notes.left_out, "classes_not_there": _not_there(choice, notes), **facts,
        }  # fmt: skip
        if notes.unreadable:
            report["sequences_unreadable"] = [*notes.unreadable]
        if uncertified := uncertified_runs(out_uri, frames.manifests):
            report["allow_uncertified"] = uncertified
        if dataset is not None:
            report["frames_without_labels"] = counts["without_labels"]
            report["confirmed_empty"] = empty
            report["decisions"] = dict(states.most_common())
            report["set_aside"] = frames.set_aside
        if choice.track_classes:
            report["named_as_track"] = notes.named_as_track
        sink.close(report)
    return report | {"source": out_uri, "sequences_unreadable": notes.unreadable}


def _not_there(choice: Choice, notes: ExportNotes) -> list[str]:
    """Classes that were named and that no label has."""
    renamed = {choice.class_map.get(name, name) for name in notes.classes}
    missing = [name for name in choice.class_map if name not in notes.classes]
    return missing + [name for name in choice.classes if name not in renamed]


def overlays_uri(out_uri: str, run_key: str) -> str:
    """Return the folder of a run's overlays."""
    return storage.join(out_uri, "reports", run_key, "overlays")


def write_overlays(out_uri: str, run_key: str, count: int) -> list[str]:
    """Draw a few of a run's frames, evenly spread over all of them.

    Args:
        out_uri: the run's storage.
        run_key: the run; one without labels has no pictures.
        count: of pictures, at most.

    Returns:
        Addresses of the pictures, fewer where frames have no labels or pictures.

    Raises:
        AutolabelError: labels cannot be read, or pictures not be written.

    """
    if not list_manifests(out_uri, run_key):
        return []
    frames = Frames(out_uri, Choice(run_key=run_key), None, pictures=True, notes=ExportNotes())
    chunks = [
        (manifest, chunk)
        for manifest in frames.manifests
        for chunk in manifest.chunks
        if chunk.instances
    ]
    total = sum(chunk.frames for _, chunk in chunks)
    written: list[str] = []
    passed = 0
    for manifest, chunk in chunks:
        passed += chunk.frames
        wanted = round(count * passed / total) - len(written)
        if not wanted:
            continue
        try:
            labeled = [frame for frame in frames.of_chunk(manifest, chunk) if frame.instances]
        except (IncompleteArtifactError, UnknownSourceError) as error:
            log.warning("no overlays of %s: %s", chunk.stem, error)
            continue
        for frame in labeled[:: max(len(labeled) // wanted, 1)][:wanted]:
            picture = paint(frame)
            if picture is not None:
                caption(picture, frame)
                name = f"{frame.series.replace('/', '__')}__{frame.index:06d}.jpg"
                uri = storage.join(overlays_uri(out_uri, run_key), name)
                storage.write_bytes(uri, as_jpeg(picture, QUALITY))
                written.append(uri)
    return written
