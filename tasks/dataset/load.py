"""Labels from artifacts into FiftyOne: fast, any number of writers, again and again.

A load writes what the machine made and nothing of what people decided. Each frame is one upsert by
the frame's own id, so two writers of the same sequence leave what one would have left.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.dataset.differences import mark_differences, replaced_labels
from tasks.dataset.documents import (
    Judgement,
    Origin,
    first_fields,
    frame_key,
    group_element,
    label_documents,
    machine_fields,
    sample_id,
    stamp_text,
)
from tasks.dataset.schema import (
    GROUP_FIELD,
    LOG_FIELD,
    MACHINE_FIELD,
    PREVIOUS_FIELD,
    open_dataset,
    prepare_dataset,
    sample_collection,
    save_sequence_view,
)
from tasks.review.harvest import harvest
from tasks.store import artifacts
from tasks.store.manifests import Manifest, labels_of
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef

__all__ = ["LoadReport", "load_frames", "load_sequence", "prepare_dataset"]

FRAMES_PER_WRITE = 64


@dataclass(frozen=True)
class LoadReport:
    """What a load wrote."""

    frames: int
    instances: int
    seconds: float


def load_sequence(
    dataset_name: str,
    out_uri: str,
    manifest: Manifest,
    frames: Sequence[FrameRef] = (),
    mask_folder: Path | None = None,
) -> LoadReport:
    """Write a complete sequence's labels into a prepared dataset.

    Args:
        dataset_name: a dataset that `prepare_dataset` made.
        out_uri: the run's storage.
        manifest: which chunks make up the sequence.
        frames: the frames as downloaded, so that the App finds the images; by default the
            sequence's own URIs are used, which works where they are local.
        mask_folder: write masks as PNG files there and only their paths into the database; by
            default `AUTOLABEL_MASK_DIR`, and into the database where that is not set.

    Raises:
        AutolabelError: no such dataset, or an artifact is missing or damaged.

    """
    started = time.perf_counter()
    mask_folder = mask_folder or chosen_mask_folder()
    dataset = open_dataset(dataset_name)
    local = {(frame.camera, frame.index): frame for frame in frames}
    origin = Origin(
        manifest.stamp.run_key, stamp_text(manifest.stamp.model), manifest.stamp.as_json()
    )
    counted = [0, 0]
    for camera in dict.fromkeys(chunk.camera for chunk in manifest.chunks):
        parts = (
            [_with_path(one, local) for one in labels_of(out_uri, manifest, chunk)]
            for chunk in manifest.chunks
            if chunk.camera == camera
        )
        for labeled, judgements in _judged(parts):
            counted[0] += len(labeled)
            counted[1] += write_frames(dataset, labeled, origin, judgements, mask_folder)
    save_sequence_view(dataset, manifest.sequence_id)
    return LoadReport(counted[0], counted[1], time.perf_counter() - started)


def chosen_mask_folder() -> Path | None:
    """Folder for masks that `AUTOLABEL_MASK_DIR` names: on a disk that the App's machine sees."""
    chosen = os.environ.get("AUTOLABEL_MASK_DIR")
    return Path(chosen).expanduser().absolute() if chosen else None


def _with_path(labeled: LabeledFrame, local: Mapping[tuple[str, int], FrameRef]) -> LabeledFrame:
    frame = local.get((labeled.frame.camera, labeled.frame.index))
    if frame is None or not frame.local_path:
        return labeled
    return replace(labeled, frame=replace(labeled.frame, local_path=frame.local_path))


def _judged(
    parts: Iterator[list[LabeledFrame]],
) -> Iterator[tuple[list[LabeledFrame], list[Judgement]]]:
    """Judge chunk after chunk, each with the frame before it and the frame after it."""
    from tasks.risk.score import judge_frames

    before: list[LabeledFrame] = []
    current = next(parts, None)
    while current is not None:
        after = next(parts, None)
        yield current, judge_frames(current, before[-1:], (after or [])[:1])
        before, current = current, after


def load_frames(
    dataset_name: str, labeled: Sequence[LabeledFrame], stamp: artifacts.RunStamp
) -> LoadReport:
    """Write some frames of one camera, in order: what a relabeling of chosen frames made."""
    from tasks.risk.score import judge_frames

    started = time.perf_counter()
    dataset = open_dataset(dataset_name)
    origin = Origin(stamp.run_key, stamp_text(stamp.model), stamp.as_json())
    instances = write_frames(dataset, labeled, origin, judge_frames(labeled), chosen_mask_folder())
    return LoadReport(len(labeled), instances, time.perf_counter() - started)


def write_frames(
    dataset: Any,
    labeled: Sequence[LabeledFrame],
    origin: Origin,
    judgements: Sequence[Judgement] | None,
    mask_folder: Path | None = None,
) -> int:
    """Upsert frames by their ids, without touching what people decided; return the instances."""
    total = 0
    for start in range(0, len(labeled), FRAMES_PER_WRITE):
        part = labeled[start : start + FRAMES_PER_WRITE]
        judged = judgements[start : start + FRAMES_PER_WRITE] if judgements else [None] * len(part)
        with _no_garbage_collection():
            total += _write_part(dataset, part, origin, judged, mask_folder)
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
    judged: Sequence[Judgement | None],
    mask_folder: Path | None,
) -> int:
    from pymongo import UpdateOne

    collection = sample_collection(dataset)
    keys = [frame_key(o.frame.sequence_id, o.frame.camera, o.frame.index) for o in part]
    ids = [sample_id(key) for key in keys]
    harvest(dataset, ids)
    before = history_of(collection, ids)
    origin = replace(origin, decisions=before.decisions, overrides=before.overrides)
    now = datetime.datetime.now(datetime.UTC)
    grouped = dataset.media_type == "group"
    replaced = replaced_labels(collection, ids, origin.run_key)
    writes, total = [], 0
    for one, key, identity, judgement in zip(part, keys, ids, judged, strict=True):
        folder = mask_folder / key if mask_folder else None
        documents = label_documents(one, origin, judgement, folder)
        total += len(documents)
        fields = machine_fields(one, origin, documents, judgement, now)
        if identity in replaced and one.masks is not None:
            size_hw = one.masks.size_hw
            fields["difference"] = mark_differences(documents, replaced[identity], size_hw)
        if grouped:
            fields[GROUP_FIELD] = group_element(one.frame, dataset.default_group_slice)
        update = {"$set": fields, "$setOnInsert": first_fields(dataset._doc.id, key, now)}
        writes.append(UpdateOne({"_id": identity}, update, upsert=True))
    _keep_previous(collection, replaced, origin.run_key)
    _bulk_write(collection, writes)
    _mirror_late_decisions(collection, ids, before.decisions)
    return total


def _bulk_write(collection: Any, writes: list[Any]) -> None:
    """Write; an upsert that lost a race against another writer's insert is an update next time."""
    from pymongo.errors import BulkWriteError

    duplicate_key = 11000
    for attempt in range(5):
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


def history_of(collection: Any, ids: Sequence[Any]) -> History:
    """Read what people decided on labels, and what relabelings made of them, by label id."""
    decided = {"_id": {"$in": list(ids)}, f"{LOG_FIELD}.0": {"$exists": True}}
    decisions: dict[str, str] = {}
    overrides: dict[str, Mapping[str, Any]] = {}
    for sample in collection.find(decided, {LOG_FIELD: 1}):
        for event in sorted(sample[LOG_FIELD], key=lambda event: str(event.get("at"))):
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
