"""Documents of samples and labels, in FiftyOne's own layout (`tasks.dataset.layout`).

Sample and label ids are hashes of what they name: a frame's content, not its position. So they are
the same after a rebuild, links into the App stay valid, and a decision finds its label again or
none.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from bson import ObjectId
from isal.isal_zlib import crc32
from rlemasklib import RLEMask

from sam2_core.cache import cannot_write
from sam2_core.types import ModelStamp
from tasks.dataset import layout
from tasks.dataset.schema import LOG_FIELD
from tasks.frames.identity import frame_key, relative_address
from tasks.masks.crops import (
    BoolArray,
    Crops,
    crops_of,
    deflated,
    npy_bytes,
    npy_zlib,
)
from tasks.risk.compute_risk import Judgement
from tasks.store.artifacts import RunStamp
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import FrameTracks
from tasks.types import FrameRef


def object_id(*parts: str) -> Any:
    """Make a MongoDB id from what it names."""
    return ObjectId(hashlib.sha256("\0".join(parts).encode()).digest()[:12])


def sample_id(key: str) -> Any:
    """Id of the sample of a frame, by its identity's key."""
    return object_id("sample", key)


def label_id(key: str, run_key: str, box_index: int) -> Any:
    """Id of one machine label: of a frame, a run and a box."""
    return ObjectId(label_prefix(key, run_key) + box_index.to_bytes(3, "big"))


def carried_id(key: str, run_key: str, name: str) -> Any:
    """Id of a label beside a run's own ones of a frame: of what was followed to it, by a name."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:3], "big") | 1 << 23
    return label_id(key, run_key, number)


def label_prefix(key: str, run_key: str) -> bytes:
    """First bytes of the ids of a run's labels of a frame; the box's index follows."""
    return hashlib.sha256(f"label\0{key}\0{run_key}".encode()).digest()[:9]


class ObjectNames:
    """Names the objects of a sequence's labels, frame after frame.

    Args:
        tracks: of each frame, by camera and index. Ids that came with boxes may be counted anew for
            each class: an object is an id and a class.

    """

    def __init__(self, tracks: Mapping[tuple[str, int], FrameTracks]) -> None:
        self._tracks = tracks
        self._first: dict[tuple[str, str, int], str] = {}

    def names(self, frame: FrameRef, label_ids: Sequence[str]) -> list[str]:
        """Name the objects of the next frame's labels.

        Args:
            frame: which.
            label_ids: N ids; an object takes that of its first label.

        Returns:
            N names.

        """
        found = self._tracks.get((frame.camera, frame.index))
        if found is None or len(found.ids) != len(label_ids):
            return list(label_ids)
        rows = zip(found.labels, found.ids.tolist(), label_ids, strict=True)
        return [
            self._first.setdefault((frame.camera, label, track), name)
            for label, track, name in rows
        ]


COPIED = (
    "confidence", "predicted_iou", "stability", "object_score", "risk", "index", "box_index",
    "source", "undetected_frames",
)  # fmt: skip
_FOUR = struct.Struct("<4d").pack
Document = dict[str, Any]
Values = dict[str, Any]  # of a label, as artifacts hold them


def detections_of(sample: Mapping[str, Any], field: str) -> Sequence[dict[str, Any]]:
    """Labels in a field of a stored sample."""
    return (sample.get(field) or {}).get("detections") or ()


def log_of(sample: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Events on a stored sample, oldest first."""
    return sorted(sample.get(LOG_FIELD) or (), key=lambda event: str(event.get("at")))


def reviewed_id(*sources: str) -> Any:
    """Id of the reviewed instance that machine labels became."""
    return object_id("reviewed", *sorted(sources))


def fingerprint(document: Mapping[str, Any], content: bytes | None = None) -> str:
    """Checksum of what a person can edit; differs from the stored one after an edit in the App.

    Masks count by their pixels: the App compresses all of a sample's anew when one was edited.

    Args:
        document: a label as stored by FiftyOne.
        content: its mask as `npy_bytes` gives it, b"" for none; decoded from the label by default.

    """
    text = _text_checksum(document.get("label"), document.get("mask_path") or "")
    xywh = document.get("bounding_box") or ()
    packed = _FOUR(*xywh) if len(xywh) == 4 else struct.pack(f"<{len(xywh)}d", *xywh)
    if content is None:
        content = npy_bytes(_stored_mask(document["mask"])) if document.get("mask") else b""
    return f"{crc32(content, crc32(packed, text)):08x}"


def _stored_mask(data: bytes) -> BoolArray:
    import fiftyone.core.utils as fou

    mask = np.asarray(fou.deserialize_numpy_array(data))
    flat = mask.any(axis=2) if mask.ndim == 3 else mask > 0
    return np.ascontiguousarray(flat, np.bool_)


@lru_cache(maxsize=4096)
def _text_checksum(label: str | None, mask_path: str) -> int:
    return crc32(f"{label}\0{mask_path}\0".encode())


def window_of(bounding_box: Sequence[float], size_hw: tuple[int, int]) -> tuple[int, int, int, int]:
    """Whole pixels of a relative box x, y, w, h: left, top, right, bottom, cut at the image."""
    height, width = size_hw
    x, y, w, h = bounding_box
    left, top = round(x * width), round(y * height)
    right, bottom = round((x + w) * width), round((y + h) * height)
    left, top = min(max(left, 0), width), min(max(top, 0), height)
    return left, top, min(max(right, left), width), min(max(bottom, top), height)


def mask_of(document: Mapping[str, Any], size_hw: tuple[int, int]) -> BoolArray:
    """Mask of a stored label on its box's own pixels, whatever grid it was edited on."""
    left, top, right, bottom = window_of(document["bounding_box"], size_hw)
    height, width = bottom - top, right - left
    mask = np.zeros((height, width), np.bool_)
    if document.get("mask_path"):
        image = cv2.imread(document["mask_path"], cv2.IMREAD_GRAYSCALE)
        mask = np.asarray(image) > 0 if image is not None else mask
    elif document.get("mask"):
        mask = _stored_mask(document["mask"])
    if not height or not width or not mask.size:
        return np.zeros((height, width), np.bool_)
    if mask.shape == (height, width):
        return mask
    nearest = cv2.INTER_NEAREST
    resized = cv2.resize(mask.astype(np.uint8), (width, height), interpolation=nearest)
    return np.asarray(resized, np.bool_)


def rle_of(mask: BoolArray, left: int, top: int, size_hw: tuple[int, int]) -> str:
    """COCO run-length string of the whole image from a crop at (left, top)."""
    height, width = mask.shape
    around = (top, size_hw[0] - top - height, left, size_hw[1] - left - width)
    counts: bytes = RLEMask.from_array(mask).pad(*around).to_dict()["counts"]
    return counts.decode("ascii")


def to_values(document: Mapping[str, Any], size_hw: tuple[int, int], **changed: Any) -> Values:
    """Turn a stored label into the values that artifacts hold.

    Args:
        document: a label as stored by FiftyOne.
        size_hw: (height, width) of the image.
        **changed: values that replace the label's own.

    """
    left, top, right, bottom = window_of(document["bounding_box"], size_hw)
    mask = mask_of(document, size_hw)
    values: Values = {
        "id": str(document["_id"]), "label": document.get("label") or "",
        "box_xyxy_px": [left, top, right, bottom], "size_hw": list(size_hw),
        "rle": rle_of(mask, left, top, size_hw), "area_px": int(mask.sum()),
        "model": document.get("model") or "", "sources": list(document.get("sources") or []),
        "decision": document.get("decision") or "", "changed": document.get("changed") or "",
    }  # fmt: skip
    values |= {name: document[name] for name in COPIED if document.get(name) is not None}
    return values | changed


def to_document(values: Mapping[str, Any]) -> Document:
    """Turn an artifact's values into a label as FiftyOne stores it."""
    size_hw = (int(values["size_hw"][0]), int(values["size_hw"][1]))
    box_xyxy_px = np.array([values["box_xyxy_px"]], np.float32)
    crops = crops_of(box_xyxy_px, [values["rle"].encode("ascii")], size_hw)
    left, top, right, bottom = crops.windows_xyxy_px[0].tolist()
    height, width = max(size_hw[0], 1), max(size_hw[1], 1)
    document = layout.detection(
        ObjectId(values["id"]), values["label"], area_px=values["area_px"], model=values["model"],
        bounding_box=[left / width, top / height, (right - left) / width, (bottom - top) / height],
        decision=values["decision"], changed=values["changed"], sources=list(values["sources"]),
        reviewer=values.get("reviewer", ""), reviewed_at=values.get("reviewed_at", ""),
    )  # fmt: skip
    document |= {name: values[name] for name in COPIED if values.get(name) is not None}
    if values["area_px"]:
        document["mask"] = npy_zlib(crops.masks[0])
    document["fingerprint"] = fingerprint(document)
    return document


# Of a machine's label, beside its mask and what is measured of it.
_AROUND = (
    "reasons", "object", "track", "index", "source", "undetected_frames", "changed", "box_xyxy_px",
)  # fmt: skip


def override_of(document: Mapping[str, Any], size_hw: tuple[int, int]) -> Values:
    """Return the override that makes a machine label again what it is."""
    return to_values(document, size_hw) | {name: document.get(name) for name in _AROUND}


def whole_document(values: Mapping[str, Any]) -> Document:
    """Turn an override into a machine label of its own."""
    made = layout.detection(ObjectId(values["id"]), values["label"], decision="")
    return made | override_document(values)


def override_document(values: Mapping[str, Any]) -> Document:
    """Turn what became of a followed machine label into the fields replaced."""
    made = to_document({"sources": [], "decision": "", "changed": "", **values})
    names = (
        "bounding_box", "mask", "area_px", "model", "label", "predicted_iou", "stability",
        "object_score", "risk", "fingerprint",
    )  # fmt: skip
    fields = {name: made[name] for name in names if name in made}
    if "mask" not in made:
        fields["mask"] = None  # there was one, perhaps
    fields["mask_path"] = None
    return fields | {name: values[name] for name in _AROUND if name in values}


def stamp_text(stamp: ModelStamp | None) -> str:
    """One line that names a model: its checkpoint, backend, precision and code version."""
    if stamp is None:
        return "boxes only"
    checkpoint = stamp.checkpoint_sha256[:12]
    return f"{stamp.name}@{checkpoint} {stamp.backend} {stamp.precision} {stamp.code_version}"


@dataclass(frozen=True)
class Origin:
    """What is the same for all labels of a run in a sequence.

    Attributes:
        run_key: of the labels.
        model: in one line.
        stamp: what made them, plain JSON values.
        frames_uri: address of the sequence.
        objects: names the objects that the labels show.
        mask_folder: where masks go as PNG files; None for the documents.
        decisions: what people decided, by label id.
        overrides: what became of labels that were followed, by label id.

    """

    run_key: str
    model: str
    stamp: Mapping[str, Any]
    frames_uri: str = ""
    objects: ObjectNames = field(default_factory=lambda: ObjectNames({}))
    mask_folder: Path | None = None
    decisions: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @staticmethod
    def of(stamp: RunStamp, **more: Any) -> Origin:
        """Describe what made labels; `more` are other attributes."""
        return Origin(stamp.labels_key, stamp_text(stamp.model), stamp.as_json(), **more)


def label_documents(
    labeled: LabeledFrame,
    crops: Crops,
    origin: Origin,
    judgement: Judgement,
) -> list[Document]:
    """Make the documents of a frame's machine labels: one per box, then what was followed to it.

    Args:
        labeled: the frame.
        crops: its masks.
        origin: of its labels.
        judgement: of its labels.

    """
    boxes, masks, frame = labeled.boxes, labeled.masks, labeled.frame
    if masks is None:
        return []
    key = frame_key(frame, origin.frames_uri)
    scale = np.array([masks.size_hw[1], masks.size_hw[0]], np.float64).clip(1)
    corner = crops.windows_xyxy_px[:, :2] / scale
    extent = (crops.windows_xyxy_px[:, 2:] - crops.windows_xyxy_px[:, :2]) / scale
    places = np.concatenate([corner, extent], axis=1).tolist()
    exact = np.nan_to_num(boxes.xyxy_px, posinf=0, neginf=0).tolist()
    scores = [one if math.isfinite(one) else None for one in boxes.scores.tolist()]
    columns = zip(
        boxes.labels, scores, places, exact, masks.predicted_iou.tolist(),
        masks.stability.tolist(), masks.object_score.tolist(), masks.area_px.tolist(),
        masks.reasons, crops.masks, strict=True,
    )  # fmt: skip
    prefix = label_prefix(key, origin.run_key)
    tracks = boxes.track_ids.tolist() if boxes.track_ids is not None else None
    risks = judgement.risk.tolist()
    ids = [ObjectId(prefix + index.to_bytes(3, "big")) for index in range(len(boxes))]
    names = origin.objects.names(frame, [str(one) for one in ids])
    folder = origin.mask_folder and origin.mask_folder / str(sample_id(key))
    documents: list[Document] = []
    for index, row in enumerate(columns):
        label, score, xywh, box, iou, stability, objectness, area, reason, mask = row
        identity = ids[index]
        # The App's tooltip shows what comes first, and may have no room for the rest.
        document = layout.detection(
            identity, label, risk=risks[index], reasons=list(judgement.reasons[index]),
            bounding_box=xywh, confidence=score, predicted_iou=iou, stability=stability,
            object_score=objectness, area_px=area, box_index=index, box_xyxy_px=box,
            model=origin.model,
            decision=origin.decisions.get(str(identity), "") if origin.decisions else "",
        )  # fmt: skip
        content = b""
        if area and folder is None:
            content = npy_bytes(mask)
            document["mask"] = deflated(content)
        elif area and folder is not None:
            document["mask_path"] = _mask_file(folder, identity, mask)
        if reason:
            document["mask_reason"] = reason
        if tracks is not None:
            document["index"] = tracks[index]
            document["track"] = f"{frame.camera}/{tracks[index]}"
        if labeled.track_labels:
            document["track_label"] = labeled.track_labels[index]
        document |= labeled.source_of(index)
        document["object"] = names[index]
        if origin.overrides and str(identity) in origin.overrides:
            document |= override_document(origin.overrides[str(identity)])
        else:
            document["fingerprint"] = fingerprint(document, content)
        documents.append(document)
    return documents + _carried(origin, prefix.hex(), set(map(str, ids)))


def _carried(origin: Origin, prefix: str, of_boxes: set[str]) -> list[Document]:
    """Make the documents of what was followed to a frame of this run, where no box is."""
    return [
        whole_document(values) | {"decision": origin.decisions.get(name, "")}
        for name, values in origin.overrides.items()
        if name.startswith(prefix) and name not in of_boxes
    ]


def _mask_file(folder: Path, identity: Any, mask: BoolArray) -> str:
    """Write a mask as PNG, once: the name is a hash of the label, so equal name, equal mask."""
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
    size_hw = frame.size_hw if labeled.masks is None else labeled.masks.size_hw
    path = frame.local_path or frame.uri.removeprefix("file://")
    fields: Document = {
        "filepath": str(Path(path).absolute()) if "://" not in path else path,
        "metadata": layout.image_metadata(size_hw, size_bytes=frame.size_bytes),
        "sequence_id": frame.sequence_id, "camera": frame.camera, "frame_number": frame.index,
        "timestamp_ns": frame.timestamp_ns, "frame_uri": frame.uri, "run_key": origin.run_key,
        "frame_address": relative_address(frame.uri, origin.frames_uri), "frame_etag": frame.etag,
        "model": origin.model, "stamp": dict(origin.stamp),
        "instances": len(labeled.boxes) if documents else 0,
        "detections": layout.detections(documents),
        "last_modified_at": now, "loaded_at": now,
        "reasons": sorted({reason for one in judgement.reasons for reason in one}),
        "risk": max((one["risk"] or 0.0 for one in documents if not one["decision"]), default=0.0),
    }  # fmt: skip
    if labeled.failure:
        fields["reasons"] = [f"failed_{labeled.failure.stage}"]
        fields["risk"] = 1.0
    return fields


def first_fields(dataset: Any, key: str, now: datetime.datetime) -> Document:
    """Fields of a sample that are set when it is new and then belong to people."""
    # A fixed pseudo-random number: the control sample is every frame below some share, whoever
    # draws it and however often the dataset is rebuilt.
    random = int.from_bytes(hashlib.sha256(f"control\0{key}".encode()).digest()[:6], "big") / 2**48
    return layout.new_sample(dataset, random, now) | {
        "frame_key": key, "control": random, "review_status": "open", "review_log": [],
        "reviewed": layout.detections([]), "share": {},
    }  # fmt: skip
