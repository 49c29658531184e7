"""Documents as FiftyOne stores them, made from labels without going through its objects.

`add_samples` spends nearly all its time making and checking Python objects. The layout here is what
`Sample.to_mongo_dict()` gives; a test holds the two against each other.

Sample and label ids are hashes of what they name: a frame's content, not its position. So they are
the same after a rebuild, links into the App stay valid, and a decision finds its label again or
none.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.cache import cannot_write
from sam2_core.types import ModelStamp
from tasks.dataset.ids import ObjectNames, label_prefix
from tasks.dataset.reviewed_instances import fingerprint, override_document
from tasks.frames.identity import frame_identity
from tasks.masks.crops import (
    BoolArray,
    crops_of,
    deflated,
    npy_bytes,
    segments_of,
)
from tasks.risk.compute_risk import Judgement
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef

Document = dict[str, Any]


def stamp_text(stamp: ModelStamp | None) -> str:
    """One line that names a model: its checkpoint, backend, precision and code version."""
    if stamp is None:
        return "boxes only"
    checkpoint = stamp.checkpoint_sha256[:12]
    return f"{stamp.name}@{checkpoint} {stamp.backend} {stamp.precision} {stamp.code_version}"


@dataclass(frozen=True)
class Origin:
    """What is the same for all labels of a run in a sequence."""

    run_key: str
    model: str
    stamp: Mapping[str, Any]
    frames_uri: str = ""  # address of the sequence
    decisions: Mapping[str, str] = field(default_factory=dict)  # label id -> what people decided
    overrides: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # label id -> relabeled


def label_documents(
    labeled: LabeledFrame,
    origin: Origin,
    judgement: Judgement,
    mask_folder: Path | None,
    objects: ObjectNames,
) -> list[Document]:
    """Make the documents of a frame's machine labels, one per box, in the boxes' order.

    Args:
        labeled: the frame.
        origin: of its labels.
        judgement: of its labels.
        mask_folder: where masks go as PNG files; into the documents by default.
        objects: names the objects that the labels show.

    """
    from bson import ObjectId

    boxes, masks = labeled.boxes, labeled.masks
    if masks is None or not len(boxes):
        return []
    frame = labeled.frame
    key = frame_identity(frame, origin.frames_uri).key
    crops = crops_of(boxes.xyxy_px, judgement.segments or segments_of(masks.rle, masks.size_hw))
    scale = np.array([masks.size_hw[1], masks.size_hw[0]], np.float64).clip(1)
    corner = crops.windows_xyxy_px[:, :2] / scale
    extent = (crops.windows_xyxy_px[:, 2:] - crops.windows_xyxy_px[:, :2]) / scale
    places = np.concatenate([corner, extent], axis=1).tolist()
    exact = np.nan_to_num(boxes.xyxy_px, posinf=0, neginf=0).tolist()
    scores = [one if math.isfinite(one) else None for one in boxes.scores.tolist()]
    columns = zip(
        boxes.labels, scores, places, exact, masks.predicted_iou.tolist(),
        masks.stability.tolist(), masks.object_score.tolist(), crops.areas_px.tolist(),
        masks.reasons, crops.masks, strict=True,
    )  # fmt: skip
    prefix = label_prefix(key, origin.run_key)
    tracks = boxes.track_ids.tolist() if boxes.track_ids is not None else None
    risks = judgement.risk.tolist()
    ids = [ObjectId(prefix + index.to_bytes(3, "big")) for index in range(len(boxes))]
    names = objects.names(frame, [str(one) for one in ids])
    documents: list[Document] = []
    for index, row in enumerate(columns):
        label, score, place, box, iou, stability, objectness, area, reason, mask = row
        identity = ids[index]
        # The App's tooltip shows what comes first, and may have no room for the rest.
        document: Document = {
            "_id": identity, "_cls": "Detection", "attributes": {}, "tags": [], "label": label,
            "risk": risks[index], "reasons": list(judgement.reasons[index]), "bounding_box": place,
            "confidence": score, "predicted_iou": iou, "stability": stability,
            "object_score": objectness, "area_px": area, "box_index": index,
            "box_xyxy_px": box, "model": origin.model,
            "decision": origin.decisions.get(str(identity), "") if origin.decisions else "",
        }  # fmt: skip
        content = b""
        if area and mask_folder is None:
            content = npy_bytes(mask)
            document["mask"] = deflated(content)
        elif area and mask_folder is not None:
            document["mask_path"] = _mask_file(mask_folder, identity, mask)
        if reason:
            document["mask_reason"] = reason
        if tracks is not None:
            document["index"] = tracks[index]
            document["track"] = f"{frame.camera}/{tracks[index]}"
        document |= _over_time(labeled, index)
        document["object"] = names[index]
        if origin.overrides and str(identity) in origin.overrides:
            document |= override_document(origin.overrides[str(identity)])
        else:
            document["fingerprint"] = fingerprint(document, content)
        documents.append(document)
    return documents


def _over_time(labeled: LabeledFrame, index: int) -> Document:
    """Return what a label's track says of it."""
    found: Document = {}
    if labeled.track_labels:
        found["track_label"] = labeled.track_labels[index]
    if index >= len(labeled.boxes) - labeled.interpolated:
        found["source"] = "interpolated"
    return found


def _mask_file(folder: Path, identity: Any, mask: BoolArray) -> str:
    """Write a mask as PNG, once: the name is a hash of the label, so equal name, equal mask."""
    import cv2

    path = folder / f"{identity}.png"
    if not path.exists():
        _, picture = cv2.imencode(".png", mask.view(np.uint8) * 255)
        temporary = path.with_suffix(".new.png")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(picture.data)
            temporary.replace(path)
        except OSError as error:
            raise cannot_write(folder, error) from error
    return str(path)


def machine_fields(
    labeled: LabeledFrame,
    origin: Origin,
    documents: list[Document],
    judgement: Judgement,
    now: datetime.datetime,
) -> Document:
    """Fields of a sample that a load writes, again and again."""
    frame = labeled.frame
    identity = frame_identity(frame, origin.frames_uri)
    height, width = labeled.masks.size_hw if labeled.masks else frame.size_hw
    fields: Document = {
        "filepath": shown_path(frame),
        "metadata": {
            "_cls": "ImageMetadata", "size_bytes": frame.size_bytes, "width": width,
            "height": height,
        },
        "sequence_id": frame.sequence_id, "camera": frame.camera, "frame_number": frame.index,
        "timestamp_ns": frame.timestamp_ns, "frame_uri": frame.uri, "run_key": origin.run_key,
        "frame_address": identity.address, "frame_etag": frame.etag,
        "model": origin.model, "stamp": dict(origin.stamp), "instances": len(documents),
        "detections": {"_cls": "Detections", "detections": documents},
        "last_modified_at": now, "loaded_at": now,
        "reasons": sorted({reason for one in judgement.reasons for reason in one}),
        "risk": max((one["risk"] or 0.0 for one in documents if not one["decision"]), default=0.0),
    }  # fmt: skip
    if labeled.failure:
        fields["reasons"] = [f"failed_{labeled.failure.stage}"]
        fields["risk"] = 1.0
    return fields


def first_fields(dataset_id: Any, key: str, now: datetime.datetime) -> Document:
    """Fields of a sample that are set when it is new and then belong to people."""
    # A fixed pseudo-random number: the control sample is every frame below some share, whoever
    # draws it and however often the dataset is rebuilt.
    random = int.from_bytes(hashlib.sha256(f"control\0{key}".encode()).digest()[:6], "big") / 2**48
    return {
        "frame_key": key, "_dataset_id": dataset_id, "_media_type": "image", "_rand": random,
        "control": random, "tags": [], "created_at": now, "review_status": "open",
        "review_log": [], "reviewed": {"_cls": "Detections", "detections": []}, "relabel": "",
    }  # fmt: skip


def group_element(moment: Any, camera: str, default_slice: str) -> Document:
    """Place of a frame among the cameras of its moment.

    The App shows one slice at a time, `default_slice` at first: the only camera of a sequence is in
    that one, where it is seen.

    Args:
        moment: id of the sample that stands for the moment; its own where it is alone.
        camera: the frame's.
        default_slice: the dataset's.

    """
    return {"_id": moment, "_cls": "Group", "name": camera or default_slice}


def shown_path(frame: FrameRef) -> str:
    """Return the file that the App shows for a frame."""
    path = frame.local_path or frame.uri.removeprefix("file://")
    return path if "://" in path else str(Path(path).absolute())
