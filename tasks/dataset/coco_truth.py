"""Reading ground truth: COCO instances json with polygons or run-length masks.

What is no mask is found here: pycocotools asks for memory until the process is killed where a
corner is far away or no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from sam2_core.arrays import Arrays
from sam2_core.mask_geometry import mask_of
from sam2_core.types import AutolabelError, Boxes, FloatArray, IntArray
from tasks.boxes.coco_json import (
    CocoFile,
    CocoImage,
    box_of,
    read_coco_json,
    wrong_value,
)
from tasks.boxes.imported import ImportedBoxes, entry_of, shown, size_hw_of
from tasks.types import FrameRef

# Objects may reach over the picture's edge; corners so many pictures away are damage.
_MOST_PICTURES_AWAY = 10


@dataclass(frozen=True, eq=False)
class TruthImage(Arrays):
    """The annotated instances of one image; crowds are kept apart.

    Attributes:
        image_id: the id in the json.
        file_name: as in the json, relative to the folder of images.
        size_hw: (height, width).
        boxes_xyxy_px: float32 (N, 4), the annotated boxes, or the masks' where none is given.
        labels: N category names.
        rle: N COCO compressed run-length strings of the whole image.
        area_px: int64 (N,), counted on the masks, of boxes alone their width times height.
        crowd_rle: masks of regions annotated as crowds, which count neither way.
        crowd_labels: their category names.
        visible_fraction: float32 (N,), how much of each object is not hidden; NaN where unknown,
            None where nothing is known.
        track_ids: int64 (N,), the same object has the same id in all frames of a sequence; or None.
        sequence: what the image is a frame of, "" for none.
        unreadable: which annotation cannot be read, and why: then there is no instance here, and
            nothing may be measured on the image; "" for none.
        boxes_alone: the truth has no masks: these are the boxes, filled, and only boxes may be
            measured.
        uri: address of the labeled frame that it is; "" where unknown.
        etag: version of that frame's picture; "" where unknown.

    """

    forms: ClassVar = {
        "boxes_xyxy_px": "float32 (N, 4)",
        "labels": "tuple (N)",
        "rle": "tuple (N)",
        "area_px": "int64 (N)",
        "crowd_rle": "tuple (C)",
        "crowd_labels": "tuple (C)",
        "visible_fraction": "float32 (N)",
        "track_ids": "int64 (N)",
    }
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
    unreadable: str = ""
    uri: str = ""
    etag: str = ""
    boxes_alone: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def of_masks(
        image_id: int, file_name: str, size_hw: tuple[int, int], labels: Sequence[str] = (),
        rle: Sequence[bytes] = (), **more: Any,
    ) -> TruthImage:  # fmt: skip
        """Bound masks and count their pixels; `more` are other attributes."""
        boxes = [rle_box_xyxy_px(one, size_hw) for one in rle]
        given: dict[str, Any] = {
            "boxes_xyxy_px": np.array(boxes, np.float32).reshape(-1, 4),
            "area_px": areas_px(rle, size_hw),
        }
        given |= more
        return TruthImage(
            image_id, file_name, size_hw, labels=tuple(labels), rle=tuple(rle), **given
        )


@dataclass(frozen=True, eq=False)
class Truth:
    """A ground-truth file."""

    images: tuple[TruthImage, ...]
    categories: tuple[str, ...]

    @property
    def boxes_alone(self) -> bool:
        """Whether there are boxes and no masks."""
        return any(image.boxes_alone for image in self.images)

    @property
    def instances(self) -> int:
        """How many instances there are, crowds not counted."""
        return sum(len(image) for image in self.images)


def images_of(truth: Truth) -> Callable[[FrameRef], list[TruthImage]]:
    """Return what finds the images of a frame, as imported boxes find theirs.

    Their names are its own, and every folder that the truth names is in the frame's address; of
    several, those count that name most of its folders.
    """
    images = {one.file_name: one for one in truth.images}
    entries = tuple(
        entry_of(name, Boxes.empty, frame_uri=image.uri) for name, image in images.items()
    )
    known = ImportedBoxes("", "", "", entries)
    return lambda frame: [images[entry.name] for entry in known.entries_of(frame)]


class _Annotation(BaseModel):
    segmentation: Any = None
    bbox: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat] | None = None
    iscrowd: Annotated[int, Field(ge=0, le=1)] | None = None
    visible_fraction: Annotated[float, Field(ge=0, le=1)] | None = None


TRUTHS = "a truth is COCO json, a folder of indexed PNGs or dataset:NAME.FIELD"


def read_truth(path: str | Path) -> Truth:
    """Read a COCO instances json; what is wrong with an annotation costs its picture.

    One in which no annotation has a mask is a truth of boxes alone.

    Raises:
        AutolabelError: when the file is missing, is not such a json, or it does not tell which
            pictures it means.

    """
    if Path(path).suffix.lower() in {".xml", ".txt"}:
        raise AutolabelError(f"{path}: {TRUTHS}; have it exported as one of these")
    try:
        file = read_coco_json(Path(path).read_bytes(), str(path))
    except FileNotFoundError:
        raise AutolabelError(f"{path}: no such file; give a COCO instances json") from None
    except OSError as error:
        raise AutolabelError(f"{path}: cannot be read: {error}") from error
    boxes_alone = not any(one.get("segmentation") for _, some in file.images for one in some)
    if not all(isinstance(image.id, int) for image, _ in file.images):
        for number, (image, _) in enumerate(file.images):  # texts: their places in the file
            image.id = number
    try:
        images = [_truth_image(*image, file, boxes_alone=boxes_alone) for image in file.images]
    except ValueError as error:
        raise AutolabelError(f"{path}: {error}") from None
    return Truth(tuple(images), tuple(dict.fromkeys(file.names.values())))


def _truth_image(
    image: CocoImage, annotations: list[dict[str, Any]], file: CocoFile, *, boxes_alone: bool
) -> TruthImage:
    size_hw = size_hw_of(image.height, image.width)
    if size_hw is None:
        raise ValueError(f"give {image.file_name} its width and height, in pixels as displayed")
    rows: tuple[list[_Row], list[_Row]] = ([], [])  # objects and crowds
    unreadable = ""
    for values in annotations:
        try:
            annotation = _Annotation.model_validate(values)
            if boxes_alone and annotation.bbox:
                left, top, right, bottom = box_of(values)  # upright
                annotation.bbox = left, top, right - left, bottom - top
                annotation.segmentation = outline(annotation.bbox, size_hw)
            label = file.label_of(values)
            rows[annotation.iscrowd or 0].append(_row(annotation, size_hw, label))
        except (ValueError, TypeError, OverflowError) as error:
            why = wrong_value(error) if isinstance(error, ValidationError) else error
            unreadable = f"annotation {values['id']}: {why}"
            rows = ([], [])
            break
    objects, crowds = rows
    visible = np.array([one.visible_fraction for one in objects], np.float32)
    boxes = np.array([one.box_xyxy_px for one in objects], np.float32).reshape(-1, 4)
    areas = (
        (boxes[:, 2:] - boxes[:, :2]).prod(1)
        if boxes_alone
        else areas_px([one.rle for one in objects], size_hw)
    )
    return TruthImage(
        image_id=int(image.id),
        file_name=image.file_name,
        size_hw=size_hw,
        boxes_xyxy_px=boxes,
        labels=tuple(one.label for one in objects),
        rle=tuple(one.rle for one in objects),
        area_px=np.rint(areas).astype(np.int64),
        crowd_rle=tuple(one.rle for one in crowds),
        crowd_labels=tuple(one.label for one in crowds),
        visible_fraction=None if np.isnan(visible).all() else visible,
        unreadable=unreadable,
        uri=image.frame_uri,
        boxes_alone=boxes_alone,
    )


def outline(box_xywh_px: Sequence[float], size_hw: tuple[int, int]) -> list[list[float]]:
    """Return the polygon around all pixels of the picture that a box has a part of."""
    x, y, width, height = box_xywh_px
    left, top = max(math.floor(x), 0), max(math.floor(y), 0)
    right, bottom = min(math.ceil(x + width), size_hw[1]), min(math.ceil(y + height), size_hw[0])
    return [[left, top, right, top, right, bottom, left, bottom]]


@dataclass(frozen=True)
class _Row:
    label: str
    rle: bytes
    box_xyxy_px: tuple[float, ...]
    visible_fraction: float  # NaN where unknown


def _row(annotation: _Annotation, size_hw: tuple[int, int], label: str) -> _Row:
    rle = to_rle(annotation.segmentation, size_hw)
    box = tuple(rle_box_xyxy_px(rle, size_hw).tolist())
    if annotation.bbox is not None:
        x, y, width, height = annotation.bbox
        box = (x, y, x + width, y + height)
        inside = x < size_hw[1] and y < size_hw[0] and box[2] > 0 and box[3] > 0
        if not (width > 0 and height > 0 and inside):
            raise ValueError(f"bbox {annotation.bbox} is no box in the picture")
    visible = annotation.visible_fraction
    return _Row(label, rle, box, np.nan if visible is None else visible)


def to_rle(segmentation: Any, size_hw: tuple[int, int]) -> bytes:
    """One COCO segmentation as compressed run-length counts of the whole image.

    Args:
        segmentation: polygons (lists of x, y), uncompressed counts or compressed counts.
        size_hw: (height, width) of the image.

    Raises:
        ValueError: when it is none of these, its size is not the image's, or no pixel is in it.

    """
    if isinstance(segmentation, list):
        rle = _of_polygons(segmentation, size_hw)
    elif isinstance(segmentation, dict) and "counts" in segmentation:
        rle = _of_counts(segmentation, size_hw)
    else:
        raise ValueError("a segmentation is a list of polygons or an object with counts and size")
    if not mask_of(rle, size_hw).any():
        raise ValueError("the mask has no pixel in the picture")
    return rle


def _of_polygons(polygons: list[Any], size_hw: tuple[int, int]) -> bytes:
    height, width = size_hw
    for polygon in polygons:
        if not isinstance(polygon, list) or len(polygon) % 2:
            raise ValueError("a polygon is a list of x, y, x, y, ...: an even count of numbers")
        corners = zip(polygon[::2], polygon[1::2], strict=True)
        if not all(_is_near(x, width) and _is_near(y, height) for x, y in corners):
            raise ValueError("a corner of the polygon is not a finite number near the picture")
    kept = [polygon for polygon in polygons if len(polygon) >= 6]
    if not kept:
        raise ValueError("a polygon needs at least three points")
    return bytes(coco_mask.merge(coco_mask.frPyObjects(kept, height, width))["counts"])


def _is_near(value: Any, side_px: int) -> bool:
    number = isinstance(value, int | float) and math.isfinite(value)
    return number and -_MOST_PICTURES_AWAY <= value / side_px <= _MOST_PICTURES_AWAY + 1


def _of_counts(segmentation: dict[str, Any], size_hw: tuple[int, int]) -> bytes:
    size = segmentation.get("size", [*size_hw])
    if size != [*size_hw]:
        raise ValueError(f"the mask is {shown(size)}, the image {size_hw[0]}x{size_hw[1]} (h x w)")
    return bytes(mask_of(segmentation["counts"], size_hw).to_dict()["counts"])


def rle_box_xyxy_px(rle: bytes, size_hw: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Bound a mask: float32 (4,) left, top, right, bottom; zeros when it is empty."""
    x, y, w, h = mask_of(rle, size_hw).bbox()
    return np.array([x, y, x + w, y + h], np.float32)


def areas_px(rles: Sequence[bytes], size_hw: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Count the pixels of N masks: int64 (N,)."""
    return np.array([mask_of(one, size_hw).area() for one in rles], np.int64)
