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

from tasks.dataset.database_access import waits_for_database
from tasks.dataset.differences import mark_differences, replaced_labels
from tasks.dataset.documents import (
    Origin,
    first_fields,
    group_element,
    label_documents,
    machine_fields,
    stamp_text,
)
from tasks.dataset.ids import ObjectNames, sample_id
from tasks.dataset.placing import Place, place_frames, recorded_frames, recorded_parts
from tasks.dataset.reviewed_instances import log_of
from tasks.dataset.schema import (
    GROUP_FIELD,
    LOG_FIELD,
    MACHINE_FIELD,
    PREVIOUS_FIELD,
    default_slice_of,
    sample_collection,
    stored_dataset,
)
from tasks.frames.identity import frame_identity
from tasks.review.calibrate import recalibration_of
from tasks.review.harvest import harvest
from tasks.review.set_aside import CHANGED, forget, peoples_fields, set_aside, set_aside_unlisted
from tasks.risk.compute_risk import Judgement, compute_risk, compute_risk_of_parts, recalibrated
from tasks.store.artifacts import RunStamp
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import Fresh, Manifest
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import read_tracks
from tasks.tracks.make_tracks import make_tracks
from tasks.tracks.track import track

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
    place = place_frames(recorded, manifest.frames_uri, chosen_mask_folder())
    origin = Origin(
        manifest.stamp.labels_key,
        stamp_text(manifest.stamp.model),
        manifest.stamp.as_json(),
        manifest.frames_uri,
    )
    set_aside(dataset, sorted(place.changed), CHANGED, keep_all=True)
    stored = read_tracks(out_uri, manifest)
    objects = ObjectNames(
        stored.by_frame if stored else make_tracks(out_uri, manifest, fresh=fresh).by_frame
    )
    counted = [0, 0]
    for camera in dict.fromkeys(chunk.camera for chunk in manifest.chunks):
        parts = recorded_parts(out_uri, manifest, camera, stored, fresh)
        for labeled, judgements in compute_risk_of_parts(parts):
            counted[0] += len(labeled)
            counted[1] += write_frames(dataset, labeled, origin, judgements, place, objects=objects)
    set_aside_unlisted(dataset, manifest.sequence_id, place.listed)
    changed, seconds = len(place.changed), time.perf_counter() - started
    return LoadReport(counted[0] - changed, counted[1], seconds, changed)


def chosen_mask_folder() -> Path | None:
    """Folder for masks that `AUTOLABEL_MASK_DIR` names: on a disk that the App's machine sees."""
    chosen = os.environ.get("AUTOLABEL_MASK_DIR")
    return Path(chosen).expanduser().absolute() if chosen else None


def load_frames(dataset_name: str, labeled: Sequence[LabeledFrame], stamp: RunStamp) -> LoadReport:
    """Write some frames of one camera, in order, beside what the dataset has."""
    started = time.perf_counter()
    origin = Origin(stamp.labels_key, stamp_text(stamp.model), stamp.as_json())
    keys = [(one.frame.camera, one.frame.index) for one in labeled]
    objects = ObjectNames(dict(zip(keys, track(labeled).frames, strict=True)))
    dataset, place = stored_dataset(dataset_name), Place(mask_folder=chosen_mask_folder())
    judged = compute_risk(labeled)
    instances = write_frames(dataset, labeled, origin, judged, place, objects=objects)
    return LoadReport(len(labeled), instances, time.perf_counter() - started)


def write_frames(
    dataset: Any,
    labeled: Sequence[LabeledFrame],
    origin: Origin,
    judgements: Sequence[Judgement],
    place: Place,
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
            total += _write_part(dataset, part, origin, judged, place, objects=objects)
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
    place: Place,
    *,
    objects: ObjectNames,
) -> int:
    from pymongo import UpdateOne

    collection = sample_collection(dataset)
    keys = [frame_identity(one.frame, origin.frames_uri).key for one in part]
    ids = [sample_id(key) for key in keys]
    harvest(dataset, ids)
    coming_back = peoples_fields(dataset, ids)
    before = history_of(collection, ids, coming_back)
    origin = replace(origin, decisions=before.decisions, overrides=before.overrides)
    now = datetime.datetime.now(datetime.UTC)
    default_slice = default_slice_of(dataset)
    replaced = replaced_labels(collection, ids, origin.run_key)
    writes, total = [], 0
    for one, key, identity, judgement in zip(part, keys, ids, judged, strict=True):
        if identity in place.changed:
            continue
        folder = place.mask_folder / str(identity) if place.mask_folder else None
        documents = label_documents(one, origin, judgement, folder, objects)
        total += len(documents)
        fields = machine_fields(one, origin, documents, judgement, now)
        fields["filepath"] = place.paths.get(one.frame.uri) or fields["filepath"]
        if identity in replaced and one.masks is not None:
            size_hw = one.masks.size_hw
            fields["difference"] = mark_differences(documents, replaced[identity], size_hw)
        if default_slice:
            moment = place.moments.get(identity, identity)
            fields[GROUP_FIELD] = group_element(moment, one.frame.camera, default_slice)
        first = first_fields(dataset._doc.id, key, now) | coming_back.get(identity, {})
        writes.append(UpdateOne({"_id": identity}, {"$set": fields, "$setOnInsert": first}, True))
    _keep_previous(collection, replaced, origin.run_key)
    _bulk_write(collection, writes)
    forget(dataset, coming_back.keys() - place.changed)
    _mirror_late_decisions(collection, ids, before.decisions)
    return total


def _bulk_write(collection: Any, writes: list[Any]) -> None:
    """Write; an upsert that lost a race against another writer's insert is an update next time."""
    from pymongo.errors import BulkWriteError

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
    from pymongo import UpdateOne

    writes = []
    for identity, labels in replaced.items():
        other = {"_id": identity, "run_key": {"$exists": True, "$ne": run_key}}
        kept = {"_cls": "Detections", "detections": labels}
        change = {PREVIOUS_FIELD: {"$literal": kept}, "previous_model": "$model"}
        writes.append(UpdateOne(other, [{"$set": change}]))
    if writes:
        collection.bulk_write(writes, ordered=False)


@dataclass(frozen=True)
class History:
    """What happened to the machine labels of some samples since they were first loaded."""

    decisions: Mapping[str, str]
    overrides: Mapping[str, Mapping[str, Any]]


def history_of(
    collection: Any, ids: Sequence[Any], coming_back: Mapping[Any, Mapping[str, Any]] | None = None
) -> History:
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
    return History(decisions, overrides)


def _mirror_late_decisions(collection: Any, ids: Sequence[Any], before: Mapping[str, str]) -> None:
    """Show decisions that were made while the load was writing."""
    from bson import ObjectId

    for label, decision in history_of(collection, ids).decisions.items():
        if before.get(label) != decision:
            collection.update_one(
                {"_id": {"$in": list(ids)}, f"{MACHINE_FIELD}.detections._id": ObjectId(label)},
                {"$set": {f"{MACHINE_FIELD}.detections.$.decision": decision}},
            )
