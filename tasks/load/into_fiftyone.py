"""Labels from artifacts into FiftyOne: fast, any number of writers, again and again.

A load writes what the machine made and nothing of what people decided. Each frame is one upsert by
the frame's own id, so two writers of the same sequence leave what one would have left. Frames are
those that the labels name, at their addresses and in their versions; nothing is joined by position.

Ground truth goes into a field of its own.
"""

import datetime
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from sam2_core.types import AutolabelError
from tasks.dataset.coco_truth import TruthImage, images_of, read_truth
from tasks.dataset.database import waits_for_database
from tasks.dataset.documents import (
    Document,
    ObjectNames,
    Origin,
    detections_of,
    first_fields,
    label_documents,
    log_of,
    machine_fields,
    mask_of,
    object_id,
    sample_id,
    window_of,
)
from tasks.dataset.layout import (
    default_slice_of,
    detection,
    detections,
    group_element,
    sample_collection,
)
from tasks.dataset.recorded_frames import Placement, placement_of, recorded_frames, recorded_parts
from tasks.dataset.schema import (
    GROUP_FIELD,
    LOG_FIELD,
    MACHINE_FIELD,
    PREVIOUS_FIELD,
    TRUTH_FIELD,
    bootstrap_dataset,
    loaded_manifests,
    open_dataset,
    refuse_before_labeling,
    remember_load,
    stored_dataset,
)
from tasks.frames.identity import frame_key
from tasks.frames.sources import UnknownSourceError
from tasks.masks.crops import crops_of, npy_zlib
from tasks.review.events import replay, standing_entries
from tasks.review.set_aside import (
    CHANGED,
    forget,
    harvest,
    peoples_fields,
    set_aside,
    set_aside_unlisted,
)
from tasks.review.stats import recalibration_of, recall_calibration
from tasks.risk.compute_risk import Judgement, compute_risk_of_parts, recalibrated
from tasks.risk.geometry import Numbers, best_pairs, shared_box_areas
from tasks.store import storage
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import (
    Fresh,
    Manifest,
    list_manifests,
    read_listed,
    withdrawn_if_damaged,
)
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import read_tracks
from tasks.tracks.linking import make_tracks
from tasks.types import FrameRef
from tasks.wording import counted


def load_truth(dataset_name: str, truth_path: Path, sequence_id: str = "") -> int:
    """Put the instances of a COCO file onto the frames that they belong to.

    Args:
        dataset_name: a dataset with its frames loaded.
        truth_path: COCO instances json; images are found as `images_of` says.
        sequence_id: look among this sequence's frames only.

    Returns:
        How many instances found their frame.

    Raises:
        AutolabelError: no image of the file is in the dataset, or an annotation is wrong.

    """
    dataset = open_dataset(dataset_name)
    truth = read_truth(truth_path)
    if truth.boxes_alone:
        raise AutolabelError(
            f"{truth_path} has boxes alone, and masks are compared here: `autolabel evaluate` "
            "measures labels by such a truth"
        )
    for image in truth.images:
        if image.unreadable:
            raise AutolabelError(f"{truth_path}: {image.file_name}: {image.unreadable}")
    collection = sample_collection(dataset)
    wanted = {"sequence_id": sequence_id} if sequence_id else {}
    fitting, frames = images_of(truth), dict[int, list[Any]]()
    for sample in collection.find(wanted, {"frame_uri": 1}):
        for image in fitting(FrameRef("", "", 0, None, sample["frame_uri"])):
            frames.setdefault(image.image_id, []).append(sample["_id"])
    now = datetime.datetime.now(datetime.UTC)
    writes, instances = [], 0
    for image in truth.images:
        if len(frames.get(image.image_id, ())) != 1:
            continue  # several fit it: rather nowhere than on the wrong frame
        (identity,) = frames[image.image_id]
        documents = truth_documents(image, str(identity))
        instances += len(documents)
        fields = {
            TRUTH_FIELD: detections(documents), "last_modified_at": now,
        }  # fmt: skip
        writes.append(UpdateOne({"_id": identity}, {"$set": fields}))
    if not writes:
        raise AutolabelError(
            f"{truth_path}: none of its {counted(len(truth.images), 'image')} is in dataset "
            f"'{dataset_name}'; file names must be the frames', and folders in their addresses"
        )
    collection.bulk_write(writes, ordered=False)
    return instances


def truth_documents(image: TruthImage, owner: str) -> list[dict[str, Any]]:
    """Make the documents of one image's true instances."""
    if not len(image):
        return []
    crops = crops_of(image.boxes_xyxy_px, image.rle, image.size_hw)
    scale = np.array([image.size_hw[1], image.size_hw[0]] * 2, np.float64)
    xywhs = crops.windows_xyxy_px / scale
    xywhs[:, 2:] -= xywhs[:, :2]
    rows = zip(image.labels, xywhs.tolist(), crops.masks, image.area_px.tolist(), strict=True)
    return [
        detection(
            object_id("truth", owner, str(index)), label, bounding_box=xywh,
            **({"mask": npy_zlib(mask)} if area else {}),
        )
        for index, (label, xywh, mask, area) in enumerate(rows)
    ]  # fmt: skip


@dataclass(frozen=True)
class LoadReport:
    """What a load wrote.

    Attributes:
        frames: frames in the dataset now, failed ones too.
        instances: their labels.
        seconds: spent.
        changed: frames that are left out: their address has another content than was labeled.
        unreadable: why the labels of a sequence that a rebuild left out cannot be read.
        unread_decisions: why a file of decisions that a rebuild left out cannot be read.

    """

    frames: int
    instances: int
    seconds: float
    changed: int = 0
    unreadable: Mapping[str, AutolabelError] = field(default_factory=dict)
    unread_decisions: Sequence[AutolabelError] = ()


@waits_for_database
def prepare_dataset(name: str, cameras: Sequence[str] = (), out_uri: str = "") -> frozenset[str]:
    """Make a dataset ready for any number of writers; once, before them, but again does no harm.

    Arguments and errors are those of `bootstrap_dataset`; returns the manifests that it holds.
    """
    bootstrap_dataset(name, cameras, out_uri)
    if out_uri:
        recall_calibration(open_dataset(name))
    return frozenset(loaded_manifests(name))


@waits_for_database
def load_sequence(
    dataset_name: str, out_uri: str, manifest: Manifest, fresh: Fresh | None = None
) -> LoadReport:
    """Write a complete sequence's labels into a prepared dataset.

    Afterwards the dataset has the frames that the manifest lists, as they were labeled, and no
    others of this sequence. A frame whose picture is another one by now is left out: then the
    sequence does not count as loaded, and the next run loads it again. Pictures that are not on
    this machine are brought. Masks become PNG files where `AUTOLABEL_MASK_DIR` names a
    folder for them.

    Args:
        dataset_name: a dataset that `prepare_dataset` made.
        out_uri: the run's storage.
        manifest: which chunks make up the sequence.
        fresh: labels that are in memory still.

    Raises:
        AutolabelError: no such dataset, or an artifact is missing, damaged or of something else.

    """
    started = time.perf_counter()
    dataset = stored_dataset(dataset_name)
    with withdrawn_if_damaged(out_uri, manifest):
        recorded = recorded_frames(out_uri, manifest, fresh)
        placement = placement_of(recorded, manifest.frames_uri)
        set_aside(dataset, sorted(placement.changed), CHANGED, keep_all=True)
        stored = read_tracks(out_uri, manifest)
        tracks = stored or make_tracks(out_uri, manifest, fresh=fresh)
        masks = os.environ.get("AUTOLABEL_MASK_DIR")  # on a disk that the App's machine sees
        origin = Origin.of(
            manifest.stamp, frames_uri=manifest.frames_uri, objects=ObjectNames(tracks.by_frame),
            mask_folder=Path(masks).expanduser().absolute() if masks else None,
        )  # fmt: skip
        frames = instances = 0
        for camera in dict.fromkeys(chunk.camera for chunk in manifest.chunks):
            parts = recorded_parts(out_uri, manifest, camera, stored, fresh)
            for labeled, judgements in compute_risk_of_parts(parts):
                frames += len(labeled)
                instances += write_frames(dataset, labeled, origin, judgements, placement)
    set_aside_unlisted(dataset, manifest.sequence_id, placement.sample_ids)
    changed = len(placement.changed)
    remember_load(dataset, manifest, whole=not changed)
    return LoadReport(frames - changed, instances, time.perf_counter() - started, changed)


def rebuild(name: str, out_uri: str, run_key: str = "") -> LoadReport:
    """Load everything that a run's storage holds into a dataset, decisions included.

    Args:
        name: the dataset; created when it is not there.
        out_uri: the run's storage.
        run_key: only this run's labels; by default every run's, oldest first.

    Raises:
        AutolabelError: nothing is there that can be read, or a file of decisions is damaged: then
            nothing is loaded.

    """
    started = time.perf_counter()
    refuse_before_labeling(name, out_uri, "rebuild it under another name, such as '{free}'")
    # Earlier runs' are loaded for the comparison of their labels with those that replaced them.
    newest = {
        (manifest.run_key, manifest.sequence_id): manifest
        for manifest in list_manifests(out_uri, run_key)
    }
    manifests, damaged = read_listed(out_uri, sorted(newest.values()))
    unreadable: dict[str, AutolabelError] = {**damaged}
    if not manifests:
        if unreadable:
            raise next(iter(unreadable.values()))
        raise AutolabelError(f"{storage.redact(out_uri)} holds no complete sequence to load")
    cameras = dict.fromkeys(chunk.camera for manifest in manifests for chunk in manifest.chunks)
    prepare_dataset(name, list(cameras), out_uri)
    last = {manifest.sequence_id: manifest for manifest in manifests}
    changed = 0
    for manifest in manifests:
        try:
            report = load_sequence(name, out_uri, manifest)
        except (IncompleteArtifactError, UnknownSourceError) as error:
            unreadable[manifest.sequence_id] = error
            continue
        if last[manifest.sequence_id] is manifest:
            changed += report.changed
    dataset = open_dataset(name)
    unread_decisions = replay(dataset, out_uri)
    # Runs replace each other's labels: what each has loaded is not what is there.
    samples = list(sample_collection(dataset).find({}, {"_id": 0, "instances": 1}))
    instances = sum(int(sample.get("instances") or 0) for sample in samples)
    seconds = time.perf_counter() - started
    return LoadReport(len(samples), instances, seconds, changed, unreadable, unread_decisions)


def write_frames(
    dataset: Any,
    labeled: Sequence[LabeledFrame],
    origin: Origin,
    judgements: Sequence[Judgement],
    placement: Placement,
) -> int:
    """Upsert frames by their ids, without touching what people decided; return the instances."""
    recalibration = recalibration_of(dataset)
    if recalibration.decisions:
        judgements = [recalibrated(judgement, recalibration) for judgement in judgements]
    collection = sample_collection(dataset)
    keys = [frame_key(labeled_frame.frame, origin.frames_uri) for labeled_frame in labeled]
    ids = [sample_id(key) for key in keys]
    there = [sample["_id"] for sample in collection.find({"_id": {"$in": ids}}, {"_id": 1})]
    if there:  # the others are new: nothing was decided on them, and nothing is replaced
        harvest(dataset, there)
    coming_back = peoples_fields(dataset, ids)
    decisions, overrides = history_of(collection, there, coming_back.values())
    origin = replace(origin, decisions=decisions, overrides=overrides)
    now = datetime.datetime.now(datetime.UTC)
    default_slice = default_slice_of(dataset)
    replaced = replaced_labels(collection, there, origin.run_key) if there else {}
    writes, total = [], 0
    rows = [
        row
        for row in zip(labeled, keys, ids, judgements, strict=True)
        if row[2] not in placement.changed
    ]
    for labeled_frame, key, identity, judgement in rows:
        documents: list[Document] = []
        if labeled_frame.masks is not None:
            crops = crops_of(
                labeled_frame.boxes.xyxy_px, labeled_frame.masks.rle, labeled_frame.masks.size_hw
            )
            documents = label_documents(labeled_frame, crops, origin, judgement)
        fields = machine_fields(labeled_frame, origin, documents, judgement, now)
        total += fields["instances"]
        fields["filepath"] = placement.paths.get(labeled_frame.frame.uri) or fields["filepath"]
        if identity in replaced and labeled_frame.masks is not None:
            size_hw = labeled_frame.masks.size_hw
            fields["difference"] = mark_differences(documents, replaced[identity], size_hw)
        if default_slice:
            moment = placement.moments.get(identity, identity)
            # The only camera of a sequence is in the slice that the App shows first.
            fields[GROUP_FIELD] = group_element(moment, labeled_frame.frame.camera or default_slice)
        first = first_fields(dataset, key, now) | coming_back.get(identity, {})
        writes.append(UpdateOne({"_id": identity}, {"$set": fields, "$setOnInsert": first}, True))
    _keep_previous(collection, replaced, origin.run_key)
    if _bulk_write(collection, writes):
        _mirror_late_decisions(collection, ids, decisions)
    forget(dataset, coming_back.keys() - placement.changed)
    return total


def _bulk_write(collection: Any, writes: list[Any]) -> bool:
    """Write; return whether any sample was there before: an insert of another writer, perhaps.

    An upsert that lost a race against such an insert is an update next time.
    """
    duplicate_key = 11000
    for attempt in range(5 if writes else 0):
        try:
            return bool(collection.bulk_write(writes, ordered=False).matched_count) or attempt > 0
        except BulkWriteError as error:
            failed = error.details["writeErrors"]
            if attempt == 4 or any(failure["code"] != duplicate_key for failure in failed):
                raise
            writes = [writes[failure["index"]] for failure in failed]
    return False


def _keep_previous(collection: Any, replaced: Mapping[Any, list[Any]], run_key: str) -> None:
    """Where another run's labels are about to be replaced, keep them for the comparison."""
    writes = []
    for identity, labels in replaced.items():
        other = {"_id": identity, "run_key": {"$exists": True, "$ne": run_key}}
        kept = detections(labels)
        change = {PREVIOUS_FIELD: {"$literal": kept}, "previous_model": "$model"}
        writes.append(UpdateOne(other, [{"$set": change}]))
    if writes:
        collection.bulk_write(writes, ordered=False)


def history_of(
    collection: Any, ids: Sequence[Any], others: Iterable[Mapping[str, Any]] = ()
) -> tuple[dict[str, str], dict[str, Mapping[str, Any]]]:
    """Read what people decided on labels, and what else became of them, by label id.

    Args:
        collection: samples.
        ids: of samples.
        others: samples that are not among them yet.

    """
    decided = {"_id": {"$in": list(ids)}, f"{LOG_FIELD}.0": {"$exists": True}}
    decisions: dict[str, str] = {}
    overrides: dict[str, Mapping[str, Any]] = {}
    for sample in (*(collection.find(decided, {LOG_FIELD: 1}) if ids else ()), *others):
        for event in log_of(sample):
            decisions.update(event.get("decisions") or {})
        for event in standing_entries(sample):
            overrides.update(event.get("overrides") or {})
    return decisions, overrides


def _mirror_late_decisions(collection: Any, ids: Sequence[Any], before: Mapping[str, str]) -> None:
    """Show decisions that were made while the load was writing."""
    for label, decision in history_of(collection, ids)[0].items():
        if before.get(label) != decision:
            collection.update_one(
                {"_id": {"$in": list(ids)}, f"{MACHINE_FIELD}.detections._id": ObjectId(label)},
                {"$set": {f"{MACHINE_FIELD}.detections.$.decision": decision}},
            )


Label = dict[str, Any]
_SHAPE = ("bounding_box", "mask", "mask_path")


def replaced_labels(collection: Any, ids: Sequence[Any], run_key: str) -> dict[Any, list[Label]]:
    """Labels of the run before this one, by sample: those about to be replaced, or kept earlier."""
    known = {
        "_id": {"$in": list(ids)},
        "$or": [
            {"run_key": {"$exists": True, "$ne": run_key}}, {"previous_model": {"$exists": True}},
        ],
    }  # fmt: skip
    projection = {"run_key": 1, MACHINE_FIELD: 1, PREVIOUS_FIELD: 1}
    result = {}
    for sample in collection.find(known, projection):
        field = PREVIOUS_FIELD if sample["run_key"] == run_key else MACHINE_FIELD
        result[sample["_id"]] = list(detections_of(sample, field))
    return result


def mark_differences(
    now: Sequence[Label], before: Sequence[Label], size_hw: tuple[int, int]
) -> float:
    """Write how much each label differs from its partner, on both sides; return the most.

    The difference is 1 - IoU of the masks with the best partner, each label having one at most; it
    is 1 for another class, and where there is no partner.

    Args:
        now: labels as stored; they get `difference`.
        before: those that they replace; they, too.
        size_hw: of the image.

    """
    for label in (*now, *before):
        label["difference"] = 1.0
    ious = _shared_ious(now, before, size_hw)
    rows = np.array([*ious], np.int64).reshape(-1, 2)
    for i, j in best_pairs(np.array([*ious.values()], np.float64), *rows.T).items():
        if now[i].get("label") == before[j].get("label"):
            now[i]["difference"] = before[j]["difference"] = 1.0 - ious[i, j]
    return max((label["difference"] for label in (*now, *before)), default=0.0)


def _shared_ious(
    now: Sequence[Label], before: Sequence[Label], size_hw: tuple[int, int]
) -> dict[tuple[int, int], float]:
    """Mask IoU of every two labels that share pixels, by their rows."""
    if not now or not before:
        return {}
    windows = [
        np.array([window_of(label["bounding_box"], size_hw) for label in side], np.float64)
        for side in (now, before)
    ]
    masks = [[mask_of(label, size_hw) for label in side] for side in (now, before)]
    found = {}
    for i, j in np.argwhere(shared_box_areas(*windows) > 0).tolist():
        if all(now[i].get(name) == before[j].get(name) for name in _SHAPE):
            found[i, j] = 1.0
            continue
        iou = _crop_iou((masks[0][i], windows[0][i]), (masks[1][j], windows[1][j]))
        if iou > 0:
            found[i, j] = iou
    return found


def _crop_iou(crop: tuple[Any, Numbers], other: tuple[Any, Numbers]) -> float:
    """IoU of two crops at their places."""
    low = np.maximum(crop[1][:2], other[1][:2]).astype(int)
    high = np.minimum(crop[1][2:], other[1][2:]).astype(int)
    parts = []
    for mask, window in (crop, other):
        left, top = window[:2].astype(int)
        parts.append(mask[low[1] - top : high[1] - top, low[0] - left : high[0] - left])
    shared = int((parts[0] & parts[1]).sum())
    return shared / max(int(crop[0].sum() + other[0].sum()) - shared, 1)
