"""Labels of a run, or of a dataset with what people decided, as a stream of frames to export."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sam2_core.types import AutolabelError, Masks
from tasks.dataset.recorded_frames import find_pictures, recorded_labels, recorded_parts
from tasks.export.decided import UNDECIDED, Decided, decisions, take_in
from tasks.export.types import ExportFrame, FileStems, Instance, Told
from tasks.risk.compute_risk import Judgement, compute_risk, compute_risk_of_parts
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.store.manifests import COMPLETE, PARTIAL, ChunkRecord, Manifest, read_reports
from tasks.store.newest import newest_manifests
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import read_tracks


@dataclass(frozen=True)
class Choice:
    """Which labels are exported, and what they are called.

    Attributes:
        classes: only these, after the map; all if empty.
        class_map: new name by old name.
        min_score: least score of a box.
        risk_below: only labels of less risk; decided ones pass.
        reviewed: only frames that people looked at, and of those what they hold to be right.
        splits: share of the sequences by split's name; empty for no splits.
        run_key: only this run's labels; by default the newest of each sequence.
        track_classes: labels have the class of their track, not what was detected in their frame.

    """

    classes: tuple[str, ...] = ()
    class_map: Mapping[str, str] = field(default_factory=dict)
    min_score: float = 0.0
    risk_below: float | None = None
    reviewed: bool = False
    splits: Mapping[str, float] = field(default_factory=dict)
    run_key: str = ""
    track_classes: bool = False


def split_of(sequence_id: str, splits: Mapping[str, float]) -> str:
    """Split of a sequence, from its name alone: it never moves when others come or go."""
    if not splits:
        return ""
    digest = hashlib.sha256(sequence_id.encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64 * sum(splits.values())
    for name, share in splits.items():
        if place < share:
            return name
        place -= share
    return name


def chosen_manifests(out_uri: str, run_key: str = "", told: Told | None = None) -> list[Manifest]:
    """Newest manifest of each sequence, by sequence.

    Args:
        out_uri: the run's storage.
        run_key: only this run's.
        told: hears of sequences whose manifest cannot be read, and why.

    Raises:
        AutolabelError: there is none.

    """
    found, unreadable = newest_manifests(out_uri, run_key)
    for name, error in unreadable.items():
        if told is None or not found:
            raise error
        told.unreadable.append(name)
        told.leave_out(f"sequence {name}: {error}")
    if not found:
        of_run = f" of run {run_key}" if run_key else ""
        raise AutolabelError(f"{storage.redact(out_uri)} holds no labeled sequence{of_run}")
    return found


class Frames:
    """The frames to export, in order, one sequence and camera after another.

    Args:
        out_uri: the run's storage.
        choice: which labels.
        dataset: with what people decided; None for a run without one.
        pictures: whether to bring the pictures here.
        told: hears what is left out.

    """

    def __init__(
        self, out_uri: str, choice: Choice, dataset: Any, *, pictures: bool, told: Told
    ) -> None:
        self._out_uri, self._choice, self._dataset = out_uri, choice, dataset
        self._pictures, self._told = pictures, told
        self.manifests = chosen_manifests(out_uri, choice.run_key, told)
        if dataset is not None:
            take_in(dataset)

    def __iter__(self) -> Iterator[ExportFrame]:
        for manifest in self.manifests:
            tracks = read_tracks(self._out_uri, manifest)
            for camera in sorted({chunk.camera for chunk in manifest.chunks}):
                parts = recorded_parts(self._out_uri, manifest, camera, tracks)
                stems = FileStems()
                for labeled, judged in compute_risk_of_parts(parts):
                    yield from self._of_chunk(manifest, labeled, judged, stems)

    def of_chunk(self, manifest: Manifest, chunk: ChunkRecord) -> Iterator[ExportFrame]:
        """Yield the frames of one chunk alone; risk is judged within it."""
        tracks = read_tracks(self._out_uri, manifest)
        labeled = recorded_labels(self._out_uri, chunk, manifest)
        labeled = [tracks.joined(one) for one in labeled] if tracks else labeled
        yield from self._of_chunk(manifest, labeled, compute_risk(labeled), FileStems())

    def _of_chunk(
        self, manifest: Manifest, labeled: Sequence[LabeledFrame], judged: Sequence[Judgement],
        stems: FileStems,
    ) -> Iterator[ExportFrame]:  # fmt: skip
        decided = decisions(self._dataset, manifest, labeled) if self._dataset else {}
        rows = [
            (one, judgement, decided.get(one.frame.index))
            for one, judgement in zip(labeled, judged, strict=True)
            if one.failure is None
        ]
        self._told.leave_out("frame failed", len(labeled) - len(rows))
        if self._choice.reviewed:
            rows = [row for row in rows if row[2] and row[2].reviewed]
        pictures = find_pictures([one.frame for one, _, _ in rows] if self._pictures else ())
        split = split_of(manifest.sequence_id, self._choice.splits)
        model = manifest.stamp.model.name if manifest.stamp.model else ""
        for one, judgement, decision in rows:
            frame = one.frame
            if frame.uri in pictures.changed:
                self._told.leave_out("frame whose picture has changed since")
                continue
            yield ExportFrame(
                frame.sequence_id, frame.camera, frame.index, frame.timestamp_ns, frame.uri,
                frame.size_hw, split, model, stems.of(frame.uri, frame.index),
                tuple(self._instances(one, judgement, decision)),
                pictures.of(frame) if self._pictures else None,
            )  # fmt: skip

    def _instances(
        self, one: LabeledFrame, judgement: Judgement, decided: Decided | None
    ) -> Iterator[Instance]:
        """Choose labels of a frame: the machine's that nobody decided on, and people's."""
        decided = decided or UNDECIDED
        found = list(decided.instances)
        if one.masks is not None and not self._choice.reviewed:
            found += decided.remade
            found += [
                self._instance(one, one.masks, judgement, number)
                for number in range(len(one.boxes))
                if number not in decided.settled
            ]
        for instance in found:
            self._told.classes.add(instance.label)
            mapped = self._choice.class_map.get(instance.label, instance.label)
            why = self._why_not(instance, mapped)
            if why:
                self._told.leave_out(why)
            else:
                yield replace(instance, label=mapped)

    def _instance(
        self, one: LabeledFrame, masks: Masks, judgement: Judgement, number: int
    ) -> Instance:
        boxes = one.boxes
        names = (self._choice.track_classes and one.track_labels) or boxes.labels
        self._told.named_as_track += names[number] != boxes.labels[number]
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
            interpolated=number >= len(boxes) - one.interpolated,
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


def source_of(name: str) -> tuple[str, Any]:
    """Tell a run's storage from a dataset: (address, dataset or None).

    A dataset is often called as the folder that it was loaded from: a plain name is the dataset
    then, which has what people decided, and ./NAME the folder. A dataset's labels lie in the
    storage that it was loaded from.

    Raises:
        AutolabelError: it is neither.

    """
    from tasks.dataset import schema
    from tasks.review.events import storage_of

    folders, known = storage.list_folders(checked(name)), None
    if schema.is_name(name):
        known = schema.existing_dataset(name)
    if {COMPLETE, PARTIAL} & {*folders}:
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
    dataset = schema.open_dataset(name)
    out_uri = storage_of(dataset)
    if not out_uri:
        raise AutolabelError(f"dataset '{name}' knows no storage: name the --out of its run")
    # Made by a version that let several share a dataset: of one of them no frame may be left out.
    schema.refuse_other_out(schema.sample_collection(dataset).database, name, out_uri)
    return out_uri, dataset


def uncertified_runs(out_uri: str, manifests: Iterable[Manifest]) -> dict[str, str]:
    """Return the verdict on the engine of each run that was used whatever it is.

    Returns:
        {run_key: the verdict that the run's reports have, several joined, "unknown" for none}.

    """
    stamps = [one.stamp for one in manifests]
    keys = sorted({one.run_key for one in stamps if one.parameters.get("allow_uncertified")})
    verdicts = {}
    for key in keys:
        told = [report.get("certificate") or {} for report in read_reports(out_uri, key)]
        found = sorted({one["verdict"] for one in told if "verdict" in one})
        verdicts[key] = ", ".join(found) or "unknown"
    return verdicts
