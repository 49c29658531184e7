"""Labels from artifacts into FiftyOne: fast, any number of writers, again and again.

A load writes what the machine made and nothing of what people decided. Each frame is one upsert by
the frame's own id, so two writers of the same sequence leave what one would have left. Frames are
those that the labels name, at their addresses and in their versions; nothing is joined by position.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from tasks.dataset.database_access import waits_for_database
from tasks.dataset.documents import (
    ObjectNames,
    Origin,
    detections_of,
    first_fields,
    label_documents,
    log_of,
    machine_fields,
    mask_of,
    sample_id,
    stamp_text,
    window_of,
)
from tasks.dataset.layout import default_slice_of, detections, group_element, sample_collection
from tasks.dataset.recorded_frames import Placement, placement_of, recorded_frames, recorded_parts
from tasks.dataset.schema import (
    GROUP_FIELD,
    LOG_FIELD,
    MACHINE_FIELD,
    PREVIOUS_FIELD,
    stored_dataset,
)
from tasks.frames.identity import frame_key
from tasks.review.calibrate import recalibration_of
from tasks.review.harvest import harvest
from tasks.review.set_aside import CHANGED, forget, peoples_fields, set_aside, set_aside_unlisted
from tasks.risk.compute_risk import Judgement, compute_risk_of_parts, recalibrated
from tasks.risk.geometry import Numbers, best_pairs, shared_box_areas
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import Fresh, Manifest
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import read_tracks
from tasks.tracks.linking import make_tracks

FRAMES_PER_WRITE = 64


@dataclass(frozen=True)
class LoadReport:
    """What a load wrote.

    Attributes:
        frames: frames in the dataset now, failed ones too.
        instances: their labels.
        seconds: spent.
        changed: frames that are left out: their address has another content than was labeled.
        unreadable: why the newest manifest of a sequence that a rebuild left out cannot be read.

    """

    frames: int
    instances: int
    seconds: float
    changed: int = 0
    unreadable: Mapping[str, IncompleteArtifactError] = field(default_factory=dict)


@waits_for_database
def load_sequence(
    dataset_name: str, out_uri: str, manifest: Manifest, fresh: Fresh | None = None
) -> LoadReport:
    """Write a complete sequence's labels into a prepared dataset.

    Afterwards the dataset has the frames that the manifest lists, as they were labeled, and no
    others of this sequence. A frame whose picture is another one by now is left out; pictures that
    are not on this machine are brought. Masks become PNG files where `AUTOLABEL_MASK_DIR` names a
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
    recorded = recorded_frames(out_uri, manifest, fresh)
    placement = placement_of(recorded, manifest.frames_uri, chosen_mask_folder())
    origin = Origin(
        manifest.stamp.labels_key,
        stamp_text(manifest.stamp.model),
        manifest.stamp.as_json(),
        manifest.frames_uri,
    )
    set_aside(dataset, sorted(placement.changed), CHANGED, keep_all=True)
    stored = read_tracks(out_uri, manifest)
    objects = ObjectNames(
        stored.by_frame if stored else make_tracks(out_uri, manifest, fresh=fresh).by_frame
    )
    frames = instances = 0
    for camera in dict.fromkeys(chunk.camera for chunk in manifest.chunks):
        parts = recorded_parts(out_uri, manifest, camera, stored, fresh)
        for labeled, judgements in compute_risk_of_parts(parts):
            frames += len(labeled)
            instances += write_frames(
                dataset, labeled, origin, judgements, placement, objects=objects
            )
    set_aside_unlisted(dataset, manifest.sequence_id, placement.sample_ids)
    changed, seconds = len(placement.changed), time.perf_counter() - started
    return LoadReport(frames - changed, instances, seconds, changed)


def chosen_mask_folder() -> Path | None:
    """Folder for masks that `AUTOLABEL_MASK_DIR` names: on a disk that the App's machine sees."""
    chosen = os.environ.get("AUTOLABEL_MASK_DIR")
    return Path(chosen).expanduser().absolute() if chosen else None


def write_frames(
    dataset: Any,
    labeled: Sequence[LabeledFrame],
    origin: Origin,
    judgements: Sequence[Judgement],
    placement: Placement,
    *,
    objects: ObjectNames,
) -> int:
    """Upsert frames by their ids, without touching what people decided; return the instances."""
    total, recalibration = 0, recalibration_of(dataset)
    if recalibration.decisions:
        judgements = [recalibrated(one, recalibration) for one in judgements]
    for start in range(0, len(labeled), FRAMES_PER_WRITE):
        part = labeled[start : start + FRAMES_PER_WRITE]
        judged = judgements[start : start + FRAMES_PER_WRITE]
        with _no_garbage_collection():
            total += _write_part(dataset, part, origin, judged, placement, objects=objects)
    return total


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Spare the collector thousands of short-lived documents, none of which is part of a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _write_part(
    dataset: Any,
    part: Sequence[LabeledFrame],
    origin: Origin,
    judged: Sequence[Judgement],
    placement: Placement,
    *,
    objects: ObjectNames,
) -> int:
    collection = sample_collection(dataset)
    keys = [frame_key(one.frame, origin.frames_uri) for one in part]
    ids = [sample_id(key) for key in keys]
    harvest(dataset, ids)
    coming_back = peoples_fields(dataset, ids)
    decisions, overrides = history_of(collection, ids, coming_back)
    origin = replace(origin, decisions=decisions, overrides=overrides)
    now = datetime.datetime.now(datetime.UTC)
    default_slice = default_slice_of(dataset)
    replaced = replaced_labels(collection, ids, origin.run_key)
    writes, total = [], 0
    for one, key, identity, judgement in zip(part, keys, ids, judged, strict=True):
        if identity in placement.changed:
            continue
        folder = placement.mask_folder / str(identity) if placement.mask_folder else None
        documents = label_documents(one, origin, judgement, folder, objects)
        total += len(documents)
        fields = machine_fields(one, origin, documents, judgement, now)
        fields["filepath"] = placement.paths.get(one.frame.uri) or fields["filepath"]
        if identity in replaced and one.masks is not None:
            size_hw = one.masks.size_hw
            fields["difference"] = mark_differences(documents, replaced[identity], size_hw)
        if default_slice:
            moment = placement.moments.get(identity, identity)
            # The only camera of a sequence is in the slice that the App shows first.
            fields[GROUP_FIELD] = group_element(moment, one.frame.camera or default_slice)
        first = first_fields(dataset, key, now) | coming_back.get(identity, {})
        writes.append(UpdateOne({"_id": identity}, {"$set": fields, "$setOnInsert": first}, True))
    _keep_previous(collection, replaced, origin.run_key)
    _bulk_write(collection, writes)
    forget(dataset, coming_back.keys() - placement.changed)
    _mirror_late_decisions(collection, ids, decisions)
    return total


def _bulk_write(collection: Any, writes: list[Any]) -> None:
    """Write; an upsert that lost a race against another writer's insert is an update next time."""
    duplicate_key = 11000
    for attempt in range(5 if writes else 0):
        try:
            collection.bulk_write(writes, ordered=False)
            return
        except BulkWriteError as error:
            failed = error.details["writeErrors"]
            if attempt == 4 or any(one["code"] != duplicate_key for one in failed):
                raise
            writes = [writes[one["index"]] for one in failed]


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
    collection: Any, ids: Sequence[Any], coming_back: Mapping[Any, Mapping[str, Any]] | None = None
) -> tuple[dict[str, str], dict[str, Mapping[str, Any]]]:
    """Read what people decided on labels, and what relabelings made of them, by label id.

    Args:
        collection: samples.
        ids: of samples.
        coming_back: people's fields of samples that are not among them yet.

    """
    decided = {"_id": {"$in": list(ids)}, f"{LOG_FIELD}.0": {"$exists": True}}
    decisions: dict[str, str] = {}
    overrides: dict[str, Mapping[str, Any]] = {}
    others = [one for one in (coming_back or {}).values() if one.get(LOG_FIELD)]
    for sample in (*collection.find(decided, {LOG_FIELD: 1}), *others):
        for event in log_of(sample):
            decisions.update(event.get("decisions") or {})
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
    ious = _overlaps(now, before, size_hw)
    rows = np.array([*ious], np.int64).reshape(-1, 2)
    for i, j in best_pairs(np.array([*ious.values()], np.float64), *rows.T).items():
        if now[i].get("label") == before[j].get("label"):
            now[i]["difference"] = before[j]["difference"] = 1.0 - ious[i, j]
    return max((label["difference"] for label in (*now, *before)), default=0.0)


def _overlaps(
    now: Sequence[Label], before: Sequence[Label], size_hw: tuple[int, int]
) -> dict[tuple[int, int], float]:
    """Mask IoU of every two labels that share pixels, by their rows."""
    if not now or not before:
        return {}
    windows = [
        np.array([window_of(one["bounding_box"], size_hw) for one in side], np.float64)
        for side in (now, before)
    ]
    masks: dict[int, Any] = {}
    found = {}
    for i, j in np.argwhere(shared_box_areas(*windows) > 0).tolist():
        one, other = now[i], before[j]
        if all(one.get(name) == other.get(name) for name in _SHAPE):
            found[i, j] = 1.0
            continue
        for label in (one, other):
            if id(label) not in masks:
                masks[id(label)] = mask_of(label, size_hw)
        pair = [(masks[id(one)], windows[0][i]), (masks[id(other)], windows[1][j])]
        iou = _iou(*pair)
        if iou > 0:
            found[i, j] = iou
    return found


def _iou(one: tuple[Any, Numbers], other: tuple[Any, Numbers]) -> float:
    """IoU of two crops at their places."""
    low = np.maximum(one[1][:2], other[1][:2]).astype(int)
    high = np.minimum(one[1][2:], other[1][2:]).astype(int)
    parts = []
    for mask, window in (one, other):
        left, top = window[:2].astype(int)
        parts.append(mask[low[1] - top : high[1] - top, low[0] - left : high[0] - left])
    shared = int((parts[0] & parts[1]).sum())
    return shared / max(int(one[0].sum() + other[0].sum()) - shared, 1)
