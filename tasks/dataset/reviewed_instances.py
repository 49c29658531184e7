"""Reviewed instances: as FiftyOne stores them, and as artifacts hold them.

An artifact holds the mask as a COCO run-length string of the whole image. FiftyOne holds it as a
crop over the box, on a grid of its own after somebody edited it with the brush: it is resized to
the box's pixels when it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from tasks.dataset.ids import object_id
from tasks.dataset.schema import LOG_FIELD
from tasks.masks.crops import BoolArray, crops_of, npy_bytes, npy_zlib, segments_of

COPIED = ("confidence", "predicted_iou", "stability", "object_score", "risk", "index", "box_index")
_FOUR = struct.Struct("<4d").pack
Values = dict[str, Any]


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
    place = document.get("bounding_box") or ()
    packed = _FOUR(*place) if len(place) == 4 else struct.pack(f"<{len(place)}d", *place)
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


def window_of(place: Sequence[float], size_hw: tuple[int, int]) -> tuple[int, int, int, int]:
    """Whole pixels of a relative box x, y, w, h: left, top, right, bottom, cut at the image."""
    height, width = size_hw
    x, y, w, h = place
    left, top = round(x * width), round(y * height)
    right, bottom = round((x + w) * width), round((y + h) * height)
    left, top = min(max(left, 0), width), min(max(top, 0), height)
    return left, top, min(max(right, left), width), min(max(bottom, top), height)


def mask_of(document: Mapping[str, Any], size_hw: tuple[int, int]) -> BoolArray:
    """Mask of a stored label on its box's own pixels, whatever grid it was edited on."""
    import cv2

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
    from pycocotools import mask as coco_mask

    full = np.zeros(size_hw, np.uint8, order="F")
    full[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    counts: bytes = coco_mask.encode(full)["counts"]
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


def to_document(values: Mapping[str, Any]) -> Values:
    """Turn an artifact's values into a label as FiftyOne stores it."""
    from bson import ObjectId

    size_hw = (int(values["size_hw"][0]), int(values["size_hw"][1]))
    segments = segments_of([values["rle"].encode("ascii")], size_hw)
    crops = crops_of(np.array([values["box_xyxy_px"]], np.float32), segments)
    left, top, right, bottom = crops.windows_xyxy_px[0].tolist()
    height, width = max(size_hw[0], 1), max(size_hw[1], 1)
    document: Values = {
        "_id": ObjectId(values["id"]), "_cls": "Detection", "attributes": {}, "tags": [],
        "label": values["label"], "area_px": values["area_px"], "model": values["model"],
        "bounding_box": [
            left / width, top / height, (right - left) / width, (bottom - top) / height
        ],
        "decision": values["decision"], "changed": values["changed"],
        "sources": list(values["sources"]), "reviewer": values.get("reviewer", ""),
        "reviewed_at": values.get("reviewed_at", ""),
    }  # fmt: skip
    document |= {name: values[name] for name in COPIED if values.get(name) is not None}
    if values["area_px"]:
        document["mask"] = npy_zlib(crops.masks[0])
    document["fingerprint"] = fingerprint(document)
    return document


def override_document(values: Mapping[str, Any]) -> Values:
    """Turn what a relabeling made of a machine label into the fields that it replaces."""
    made = to_document({"sources": [], "decision": "", "changed": "", **values})
    names = (
        "bounding_box", "mask", "area_px", "model", "label", "predicted_iou", "stability",
        "object_score", "risk", "fingerprint",
    )  # fmt: skip
    fields = {name: made[name] for name in names if name in made}
    if "mask" not in made:
        fields["mask"] = None  # there was one, perhaps
    fields["mask_path"] = None
    if "reasons" in values:
        fields["reasons"] = list(values["reasons"])
    return fields
