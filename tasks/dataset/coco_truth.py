"""Reading ground truth: COCO instances json with polygons or run-length masks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import AutolabelError, FloatArray, IntArray
from tasks.dataset.coco_segmentation import areas_px, rle_box_xyxy_px, to_rle


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
        unreadable: which annotation cannot be read, and why: then there is no instance here, and
            nothing may be measured on the image; "" for none.

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
    unreadable: str = ""

    def __post_init__(self) -> None:
        freeze_arrays(
            self, boxes_xyxy_px="float32 (N, 4)", labels="tuple (N)", rle="tuple (N)",
            area_px="int64 (N)", crowd_rle="tuple (C)", crowd_labels="tuple (C)",
            visible_fraction="float32 (N)", track_ids="int64 (N)",
        )  # fmt: skip

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
    def instances(self) -> int:
        """How many instances there are, crowds not counted."""
        return sum(len(image) for image in self.images)


def load_truth(path: str | Path) -> Truth:
    """Read a COCO instances json in which every annotation can be measured.

    Raises:
        AutolabelError: when the file is missing, is not such a json, or an annotation is wrong.

    """
    truth = read_truth(path)
    for image in truth.images:
        if image.unreadable:
            raise AutolabelError(f"{path}: {image.file_name}: {image.unreadable}")
    return truth


def read_truth(path: str | Path) -> Truth:
    """Read a COCO instances json; what is wrong with an annotation costs its picture.

    Raises:
        AutolabelError: when the file is missing, is not such a json, or nobody can tell which
            pictures it means.

    """
    content = _content(Path(path))
    try:
        names = _categories(content["categories"])
        entries = _entries(content["images"])
        annotations = _by_image(content["annotations"], entries)
        images = tuple(_image(one, annotations[one["id"]], names) for one in entries.values())
    except ValueError as error:
        raise AutolabelError(f"{path}: bad COCO instances json: {error}") from error
    return Truth(images, tuple(dict.fromkeys(names.values())))


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise AutolabelError(f"{path}: no such file; give a COCO instances json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise AutolabelError(f"{path}: cannot be read as json: {error}") from error
    keys = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(k), list) for k in keys):
        what = "a list, as COCO's results are, and " if isinstance(content, list) else ""
        raise AutolabelError(
            f"{path}: {what}not a COCO instances json, which is an object with the lists "
            f"{', '.join(keys)}"
        )
    return content


def _categories(categories: list[Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for number, one in enumerate(categories):
        key = _id(one, f"category number {number}")
        if not isinstance(one.get("name"), str) or not one["name"].strip():
            raise ValueError(f"category {key} has no name")
        if found.setdefault(key, one["name"]) != one["name"]:
            raise ValueError(f"two categories have the id {key}")
    return found


def _entries(images: list[Any]) -> dict[int, dict[str, Any]]:
    """Return the images by id, each with a name and a size."""
    found: dict[int, dict[str, Any]] = {}
    for number, one in enumerate(images):
        key = _id(one, f"image number {number}")
        name, size_hw = one.get("file_name"), (one.get("height"), one.get("width"))
        if not isinstance(name, str) or not name:
            raise ValueError(f"image {key} has no file_name")
        if key in found:
            raise ValueError(
                f"{found[key]['file_name']} and {name} both have the id {key}: nobody can tell "
                "which of them an annotation means; give every image an id of its own"
            )
        if not all(isinstance(side, int) and side > 0 for side in size_hw):
            raise ValueError(f"image {key} ({name}) has no height and width in pixels")
        found[key] = one | {"id": key}
    return found


def _by_image(
    annotations: list[Any], entries: Mapping[int, Any]
) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {key: [] for key in entries}
    for number, one in enumerate(annotations):
        if not isinstance(one, dict):
            raise ValueError(f"annotation number {number} is no object")
        image = _whole(one.get("image_id"))
        if image is None or image not in found:
            what = f"image_id {one.get('image_id')!r} is no image of the file"
            raise ValueError(f"annotation {one.get('id', f'number {number}')}: {what}")
        found[image].append({"id": f"number {number}"} | one)
    return found


def _id(one: Any, what: str) -> int:
    given = one.get("id") if isinstance(one, dict) else one
    number = _whole(given) if isinstance(one, dict) else None
    if number is None:
        raise ValueError(f"{what}: its id must be a whole number, and is {given!r}")
    return number


def _whole(value: Any) -> int | None:
    """Return an id as a whole number, also where it is written as text or with a point."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole else None


def _image(
    entry: dict[str, Any], annotations: list[dict[str, Any]], names: dict[int, str]
) -> TruthImage:
    size_hw = (entry["height"], entry["width"])
    rows: dict[bool, list[_Row]] = {False: [], True: []}
    unreadable = ""
    for annotation in annotations:
        try:
            rows[_is_crowd(annotation)].append(_row(annotation, size_hw, names))
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            unreadable = f"annotation {annotation['id']}: {error}"
            rows = {False: [], True: []}
            break
    things, crowds = rows[False], rows[True]
    visible = [one.visible for one in things]
    return TruthImage(
        image_id=entry["id"],
        file_name=entry["file_name"],
        size_hw=size_hw,
        boxes_xyxy_px=np.array([one.box_xyxy_px for one in things], np.float32).reshape(-1, 4),
        labels=tuple(one.label for one in things),
        rle=tuple(one.rle for one in things),
        area_px=areas_px([one.rle for one in things], size_hw),
        crowd_rle=tuple(one.rle for one in crowds),
        crowd_labels=tuple(one.label for one in crowds),
        visible_fraction=None if np.isnan(visible).all() else np.array(visible, np.float32),
        unreadable=unreadable,
    )


@dataclass(frozen=True)
class _Row:
    """An annotation: class, mask, box (x1, y1, x2, y2), visible fraction (NaN: unknown)."""

    label: str
    rle: bytes
    box_xyxy_px: tuple[float, ...]
    visible: float


def _row(annotation: dict[str, Any], size_hw: tuple[int, int], names: dict[int, str]) -> _Row:
    category = _whole(annotation.get("category_id"))
    if category is None or category not in names:
        raise ValueError(f"category_id {annotation.get('category_id')!r} is none of the file's")
    rle = to_rle(annotation.get("segmentation"), size_hw)
    given = annotation.get("visible_fraction")
    if given is not None and not (isinstance(given, int | float) and 0 <= given <= 1):
        raise ValueError(f"visible_fraction must be a number from 0 to 1, and is {given!r}")
    box = annotation.get("bbox")
    corners = rle_box_xyxy_px(rle, size_hw).tolist() if box is None else _corners(box, size_hw)
    visible = np.nan if given is None else float(given)
    return _Row(names[category], rle, tuple(corners), visible)


def _is_crowd(annotation: dict[str, Any]) -> bool:
    given = annotation.get("iscrowd") or 0
    if _whole(given) not in {0, 1}:
        raise ValueError(f"iscrowd must be 0 or 1, and is {given!r}")
    return bool(_whole(given))


def _corners(box: Any, size_hw: tuple[int, int]) -> list[float]:
    """Return x1, y1, x2, y2 of a COCO box, of which some must be in the picture."""
    numbers = isinstance(box, list) and all(isinstance(value, int | float) for value in box)
    if not numbers or len(box) != 4:
        raise ValueError(f"bbox must be four numbers, x, y, width, height, and is {box!r}")
    x, y, width, height = (float(value) for value in box)
    inside = x < size_hw[1] and y < size_hw[0] and x + width > 0 and y + height > 0
    if not (np.isfinite([x, y, width, height]).all() and width > 0 and height > 0 and inside):
        raise ValueError(f"bbox {box} is no box in the picture (x, y, width, height)")
    return [x, y, x + width, y + height]
