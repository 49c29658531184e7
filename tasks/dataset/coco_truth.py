"""Reading ground truth: COCO instances json with polygons or run-length masks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.types import AutolabelError, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class TruthImage:
    """The annotated instances of one image; crowds are kept apart.

    Attributes:
        image_id: the id in the json.
        file_name: as in the json, relative to the folder of images.
        size_hw: (height, width).
        boxes_xyxy_px: float32 (N, 4), the annotated boxes, or the masks' where none is given.
        labels: N category names.
        rle: N COCO compressed run-length strings of the whole image.
        area_px: int64 (N,), counted on the masks.
        crowd_rle: masks of regions annotated as crowds, which count neither way.
        crowd_labels: their category names.
        visible_fraction: float32 (N,), how much of each object is not hidden; NaN where unknown,
            None where nothing is known.
        track_ids: int64 (N,), the same object has the same id in all frames of a sequence; or None.
        sequence: what the image is a frame of, "" for none.

    """

    image_id: int
    file_name: str
    size_hw: tuple[int, int]
    boxes_xyxy_px: FloatArray
    labels: tuple[str, ...]
    rle: tuple[bytes, ...]
    area_px: IntArray
    crowd_rle: tuple[bytes, ...] = ()
    crowd_labels: tuple[str, ...] = ()
    visible_fraction: FloatArray | None = None
    track_ids: IntArray | None = None
    sequence: str = ""

    def __post_init__(self) -> None:
        freeze_arrays(
            self, boxes_xyxy_px="float32 (N, 4)", labels="tuple (N)", rle="tuple (N)",
            area_px="int64 (N)", crowd_rle="tuple (C)", crowd_labels="tuple (C)",
            visible_fraction="float32 (N)", track_ids="int64 (N)",
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Truth:
    """A ground-truth file."""

    images: tuple[TruthImage, ...]
    categories: tuple[str, ...]

    @property
    def instances(self) -> int:
        """How many instances there are, crowds not counted."""
        return sum(len(image) for image in self.images)


def to_rle(segmentation: Any, size_hw: tuple[int, int]) -> bytes:
    """One COCO segmentation as compressed run-length counts of the whole image.

    Args:
        segmentation: polygons (lists of x, y), uncompressed counts or compressed counts.
        size_hw: (height, width) of the image.

    Raises:
        ValueError: when it is none of these, or its size is not the image's.

    """
    from pycocotools import mask as coco_mask

    height, width = size_hw
    if isinstance(segmentation, list):
        polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
        if not polygons:
            raise ValueError("a polygon needs at least three points")
        merged = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
        return bytes(merged["counts"])
    if not isinstance(segmentation, dict) or "counts" not in segmentation:
        raise ValueError("a segmentation is a list of polygons or an object with counts and size")
    size = tuple(int(value) for value in segmentation.get("size", size_hw))
    if size != size_hw:
        raise ValueError(f"the mask is {size[0]}x{size[1]}, the image {height}x{width} (h x w)")
    counts = segmentation["counts"]
    if isinstance(counts, list):
        if sum(counts) != height * width:
            raise ValueError(f"counts add up to {sum(counts)}, not to {height * width} pixels")
        return bytes(coco_mask.frPyObjects(segmentation, height, width)["counts"])
    return counts.encode("ascii") if isinstance(counts, str) else bytes(counts)


def rle_box_xyxy_px(rle: bytes, size_hw: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Bound a mask: float32 (4,) left, top, right, bottom; zeros when it is empty."""
    from pycocotools import mask as coco_mask

    x, y, w, h = coco_mask.toBbox({"counts": rle, "size": list(size_hw)})
    return np.array([x, y, x + w, y + h], np.float32)


def load_truth(path: str | Path) -> Truth:
    """Read a COCO instances json.

    Raises:
        AutolabelError: when the file is missing, is not such a json, or an annotation is wrong.

    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AutolabelError(f"{path}: no such file; give a COCO instances json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise AutolabelError(f"{path}: cannot be read as json: {error}") from error
    keys = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(k), list) for k in keys):
        raise AutolabelError(f"{path}: not a COCO instances json (needs the lists {keys})")
    try:
        names = {int(c["id"]): str(c["name"]) for c in content["categories"]}
        by_image: dict[int, list[dict[str, Any]]] = {int(i["id"]): [] for i in content["images"]}
        for annotation in content["annotations"]:
            by_image[int(annotation["image_id"])].append(annotation)
        images = tuple(
            _image(entry, by_image[int(entry["id"])], names) for entry in content["images"]
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise AutolabelError(f"{path}: bad COCO instances json: {what}") from error
    return Truth(images, tuple(dict.fromkeys(names.values())))


def _image(
    entry: dict[str, Any], annotations: list[dict[str, Any]], names: dict[int, str]
) -> TruthImage:
    from pycocotools import mask as coco_mask

    size_hw = (int(entry["height"]), int(entry["width"]))
    boxes: list[npt.NDArray[np.float32]] = []
    rows: dict[bool, list[tuple[str, bytes]]] = {False: [], True: []}
    for annotation in annotations:
        try:
            rle = to_rle(annotation["segmentation"], size_hw)
        except ValueError as error:
            raise ValueError(
                f"annotation {annotation.get('id')} of image {entry['id']}: {error}"
            ) from error
        crowd = bool(annotation.get("iscrowd", 0))
        rows[crowd].append((names[int(annotation["category_id"])], rle))
        if crowd:
            continue
        box = annotation.get("bbox")
        if box is None:
            boxes.append(rle_box_xyxy_px(rle, size_hw))
        else:
            x, y, w, h = (float(value) for value in box)
            boxes.append(np.array([x, y, x + w, y + h], np.float32))
    rles = [{"counts": rle, "size": list(size_hw)} for _, rle in rows[False]]
    return TruthImage(
        image_id=int(entry["id"]),
        file_name=str(entry["file_name"]),
        size_hw=size_hw,
        boxes_xyxy_px=np.array(boxes, np.float32).reshape(-1, 4),
        labels=tuple(label for label, _ in rows[False]),
        rle=tuple(rle for _, rle in rows[False]),
        area_px=np.array(coco_mask.area(rles) if rles else [], np.int64),
        crowd_rle=tuple(rle for _, rle in rows[True]),
        crowd_labels=tuple(label for label, _ in rows[True]),
        visible_fraction=_visible(one for one in annotations if not one.get("iscrowd", 0)),
    )


def _visible(annotations: Iterable[dict[str, Any]]) -> FloatArray | None:
    given = [one.get("visible_fraction") for one in annotations]
    if all(one is None for one in given):
        return None
    return np.array([np.nan if one is None else float(one) for one in given], np.float32)
