"""Ground truth into the `ground_truth` field, where it exists, and evaluation against it."""

from __future__ import annotations

import datetime
import os
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from pymongo import UpdateOne

from sam2_core.types import AutolabelError
from tasks.dataset.coco_truth import TruthImage
from tasks.dataset.coco_truth import load_truth as read_truth
from tasks.dataset.documents import object_id
from tasks.dataset.layout import detection, detections, sample_collection
from tasks.dataset.schema import MACHINE_FIELD, TRUTH_FIELD, dataset_lock, open_dataset
from tasks.masks.crops import crops_of, npy_zlib, segments_of
from tasks.review.queue import everything
from tasks.wording import counted

EVALUATION = "truth"


def load_truth(dataset_name: str, truth_path: Path, sequence_id: str = "") -> int:
    """Put the instances of a COCO file onto the frames that they belong to.

    Args:
        dataset_name: a dataset with its frames loaded.
        truth_path: COCO instances json; images are found by file name.
        sequence_id: look among this sequence's frames only.

    Returns:
        How many instances found their frame.

    Raises:
        AutolabelError: no image of the file is in the dataset.

    """
    dataset = open_dataset(dataset_name)
    truth = read_truth(truth_path)
    collection = sample_collection(dataset)
    wanted = {"sequence_id": sequence_id} if sequence_id else {}
    frames: dict[str, list[tuple[Any, tuple[str, ...]]]] = {}
    for sample in collection.find(wanted, {"frame_uri": 1}):
        parts = PurePosixPath(sample["frame_uri"].replace("\\\\", "/")).parts
        frames.setdefault(parts[-1], []).append((sample["_id"], parts))
    now = datetime.datetime.now(datetime.UTC)
    writes, instances = [], 0
    for image in truth.images:
        identity = _frame_of(image.file_name, frames)
        if identity is None:
            continue
        documents = truth_documents(image, str(identity))
        instances += len(documents)
        fields = {
            TRUTH_FIELD: detections(documents), "last_modified_at": now,
        }  # fmt: skip
        writes.append(UpdateOne({"_id": identity}, {"$set": fields}))
    if not writes:
        raise AutolabelError(
            f"{truth_path}: none of its {counted(len(truth.images), 'image')} is in dataset "
            f"'{dataset_name}'; file names must end like the frames' names"
        )
    collection.bulk_write(writes, ordered=False)
    return instances


def evaluate(dataset_name: str, iou: float = 0.5) -> dict[str, float]:
    """Compare `detections` with `ground_truth` by mask IoU inside FiftyOne, and save patch views.

    The views `wrong labels` and `missed objects` show one patch each; labels with empty masks count
    as wrong.

    Returns:
        precision, recall, fscore, and the counts tp, fp, fn.

    Raises:
        AutolabelError: no such dataset, or it has no ground truth.

    """
    dataset = open_dataset(dataset_name)  # it chooses the database, before fiftyone is there
    from fiftyone import ViewField as F

    if not dataset.count(f"{TRUTH_FIELD}.detections"):
        raise AutolabelError(f"dataset '{dataset_name}' has no ground truth to compare with")
    flat = everything(dataset).match(F(f"{TRUTH_FIELD}.detections").length() > 0)
    with_mask = flat.filter_labels(MACHINE_FIELD, F("area_px") > 0, only_matches=False)
    results = with_mask.evaluate_detections(
        MACHINE_FIELD, gt_field=TRUTH_FIELD, eval_key=EVALUATION, iou=iou, use_masks=True,
        classwise=False,
    )  # fmt: skip
    empty = flat.count(f"{MACHINE_FIELD}.detections") - with_mask.count(
        f"{MACHINE_FIELD}.detections"
    )
    patches = dataset.load_evaluation_view(EVALUATION).to_evaluation_patches(EVALUATION)
    with dataset_lock(dataset.name):
        wrong, missed = (patches.match(F("type") == kind) for kind in ("fp", "fn"))
        dataset.save_view("wrong labels", wrong, overwrite=True)
        dataset.save_view("missed objects", missed, overwrite=True)
    counts = {kind: float(patches.match(F("type") == kind).count()) for kind in ("tp", "fp", "fn")}
    counts["fp"] += empty
    metrics = results.metrics()
    right, labels = counts["tp"], counts["tp"] + counts["fp"]
    precision, recall = right / max(labels, 1), float(metrics["recall"])
    fscore = 2 * precision * recall / max(precision + recall, 1e-9)
    return {"precision": precision, "recall": recall, "fscore": fscore, **counts}


def _frame_of(name: str, frames: dict[str, list[tuple[Any, tuple[str, ...]]]]) -> Any | None:
    """Find the frame whose path ends like the name does; with several, the longest common end."""
    path = PurePosixPath(name)
    found: dict[int, list[Any]] = {}  # by how many parts at the end are the same
    for identity, parts in frames.get(path.name, []):
        common = os.path.commonprefix([parts[::-1], path.parts[::-1]])  # noqa: RUF071 - of parts
        found.setdefault(len(common), []).append(identity)
    best = found[max(found)] if found else []
    return best[0] if len(best) == 1 else None


def truth_documents(image: TruthImage, owner: str) -> list[dict[str, Any]]:
    """Make the documents of one image's true instances."""
    if not len(image):
        return []
    crops = crops_of(image.boxes_xyxy_px, segments_of(image.rle, image.size_hw))
    scale = np.array([image.size_hw[1], image.size_hw[0]] * 2, np.float64)
    xywhs = crops.windows_xyxy_px / scale
    xywhs[:, 2:] -= xywhs[:, :2]
    rows = zip(image.labels, xywhs.tolist(), crops.masks, crops.areas_px.tolist(), strict=True)
    return [
        detection(
            object_id("truth", owner, str(index)), label, bounding_box=xywh,
            **({"mask": npy_zlib(mask)} if area else {}),
        )
        for index, (label, xywh, mask, area) in enumerate(rows)
    ]  # fmt: skip
