"""Boxes of annotation files: COCO json, CVAT's XML 1.1, the tables of nuImages and T4.

An odd row costs its image only, and the order of the file is kept. Of COCO the segmentations are
ignored; `score` and track ids are taken where they are.

CVAT names each image; of videos, tracks have boxes at numbered frames: between two of them a box
moves evenly, as in CVAT, until one says that it is outside. Polygons, polylines, ellipses and masks
stand for the box around them, and turned boxes for the upright one around.
"""

import base64
import io
import math
import xml.etree.ElementTree as ET
from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from sam2_core.types import AutolabelError
from tasks.boxes.coco_json import CocoImage, read_coco_json
from tasks.boxes.imported import (
    FOUR_NUMBERS,
    NUMBER,
    WHOLE_NUMBER,
    ImageRows,
    Row,
    Rows,
    Xyxy,
    read_as,
    shown,
    size_hw_of,
)
from tasks.frames.identity import IMAGE_SUFFIXES, suffix_of
from tasks.frames.listing import Folder
from tasks.frames.readers.nuscenes import datasets, rows
from tasks.store import storage

TABLE = "object_ann"
_TRACK_NAMES = ("track_id", "instance_id", "tracking_id")
Document = Mapping[str, Any]


def read_coco(data: bytes, where: str) -> Rows:
    """Read a COCO file.

    Raises:
        AutolabelError: it is none, or does not tell what belongs together.

    """
    file = read_coco_json(data, where, CocoImage)
    found = []
    for image, annotations in file.images:
        size_hw = size_hw_of(image.height, image.width)
        rows_of_image = ImageRows(size_hw, frame_uri=image.frame_uri)
        for one in annotations:
            rows_of_image.add(f"{where}: annotation {one['id']}", _coco_row, one, file.names)
        found.append((image.file_name, rows_of_image))
    return Rows(tuple(found), tuple(file.names.values()))


def _coco_row(one: Document, names: Mapping[Hashable, str]) -> Row:
    x, y, width, height = read_as(FOUR_NUMBERS, one.get("bbox"), "bbox")
    score = read_as(NUMBER, one.get("score", 1.0), "score")
    category = one.get("category_id")
    if not isinstance(category, Hashable) or category not in names:
        raise ValueError(f"category_id {shown(category)} is none of the file's")
    attributes = one.get("attributes")
    given = {**(attributes if isinstance(attributes, dict) else {}), **one}
    track = next((key for key in _TRACK_NAMES if given.get(key) is not None), "")
    track_id = read_as(WHOLE_NUMBER, given[track], track) if track else None
    return Row(names[category], (x, y, x + width, y + height), score, track_id)


def read_nuscenes(uri: str) -> Rows:
    """Read the 2D boxes of a dataset, or of a folder of datasets.

    `sample_data` names the pictures of `object_ann`, whose `bbox` is left, top, right, bottom in
    pixels. Where it is missing, the box is that of the mask.

    Raises:
        AutolabelError: it has none, or a table is damaged.

    """
    images: dict[str, ImageRows] = {}
    for names, folder, tables in datasets(Folder(uri)):
        for table in tables:
            if f"{TABLE}.json" in (Folder(folder) / table).files:
                _read_tables(storage.join(folder, table), names, images)
    if not images:
        raise AutolabelError(
            f"{storage.redact(uri)} holds no 2D boxes: no {TABLE}.json beside sample_data.json "
            "(nuImages and T4 have it, nuScenes has 3D boxes only)"
        )
    return Rows(tuple(images.items()))


def _read_tables(folder: str, names: tuple[str, ...], images: dict[str, ImageRows]) -> None:
    def table(name: str) -> Any:
        return rows(storage.join(folder, f"{name}.json"))

    categories = {str(one.get("token")): str(one.get("name")) for one in table("category")}
    by_token: dict[str, ImageRows] = {}
    for one in table("sample_data"):
        size_hw, file_name = (
            size_hw_of(one.get("height"), one.get("width")),
            str(one.get("filename")),
        )
        if size_hw and suffix_of(file_name) in IMAGE_SUFFIXES:
            name = "/".join((*names, file_name))
            by_token[str(one.get("token"))] = images.setdefault(name, ImageRows(size_hw))
    # Of this table alone, so that another dataset beside it leaves them as they are.
    tracks: dict[str, int] = {}
    for one in table(TABLE):
        picture, where = (
            str(one.get("sample_data_token")),
            f"{TABLE}.json, token {one.get('token')}",
        )
        if picture not in by_token:
            raise AutolabelError(f"{folder}: {where}: sample_data.json has no such picture")
        image = by_token[picture]
        image.add(where, _table_row, one, image.size_hw, categories, tracks)


def _table_row(
    one: Document, size_hw: tuple[int, int], categories: Mapping[str, str], tracks: dict[str, int]
) -> Row:
    category, instance = str(one.get("category_token")), one.get("instance_token")
    if category not in categories:
        raise ValueError(f"category_token {category} is in no table")
    bbox = one.get("bbox")
    box = read_as(FOUR_NUMBERS, bbox, "bbox") if bbox else _box_of_mask(one.get("mask"), size_hw)
    metadata = one.get("autolabel_metadata") or [{}]
    score = metadata[0].get("score")
    # From 1, as they come: short for people, and exact in JavaScript, as no hash would be.
    track_id = tracks.setdefault(str(instance), len(tracks) + 1) if instance else None
    score = read_as(NUMBER, 1.0 if score is None else score, "score")
    return Row(categories[category], box, score, track_id)


def _box_of_mask(mask: Any, size_hw: tuple[int, int]) -> Xyxy:
    """Return the box around a mask.

    Its `size` is (width, height) by the documentation of nuImages and T4 and (height, width) in
    their data, so it does not tell the order: that of `sample_data` counts, another pair does not.
    """
    from pycocotools import mask as coco_mask

    if not isinstance(mask, dict):
        raise ValueError("there is neither a bbox nor a mask")
    size = [int(side) for side in mask["size"]]
    if sorted(size) != sorted(size_hw):
        raise ValueError(f"its mask is of size {size}, the picture {size_hw[1]}x{size_hw[0]}")
    counts = base64.b64decode(mask["counts"])
    left, top, width, height = coco_mask.toBbox({"size": [*size_hw], "counts": counts}).tolist()
    return left, top, left + width, top + height


_MOST_FRAMES = 1_000_000  # of a track: nine hours of video
_POINTS = {"polygon", "polyline"}
_SIDES = {
    "box": ("xtl", "ytl", "xbr", "ybr"),
    "mask": ("left", "top", "width", "height"),
    "ellipse": ("cx", "cy", "rx", "ry"),
}


def read_cvat(data: bytes, where: str) -> Rows:
    """Read a file.

    Raises:
        AutolabelError: it is no such file, or damaged; names the line.

    """
    if b"<!ENTITY" in data or b"<!DOCTYPE" in data:
        raise AutolabelError(f"{where} declares entities, which CVAT never does: it is not read")
    images: dict[str, ImageRows] = {}
    size_hw: tuple[int, int] | None = None
    try:
        for _, element in ET.iterparse(io.BytesIO(data)):  # noqa: S314 - without entities
            if element.tag == "original_size":
                size_hw = size_hw_of(element.findtext("height"), element.findtext("width"))
            elif element.tag == "image":
                name = element.get("name") or ""
                image = ImageRows(size_hw_of(element.get("height"), element.get("width")))
                for position, shape in enumerate(element):
                    image.add(f"{where}: image {name}: shape number {position}", _row, shape)
                images[name] = image
                element.clear()
            elif element.tag == "track":
                _add_track(images, element, size_hw, where)
                element.clear()
    except ET.ParseError as error:
        raise AutolabelError(f"{where} is no XML, or is damaged: {error}") from error
    if not images:
        raise AutolabelError(f"{where} holds no images and no tracks of CVAT's XML 1.1")
    return Rows(tuple(images.items()))


def _row(shape: ET.Element) -> Row | None:
    box = _box(shape)
    return Row(shape.get("label") or "", box) if box else None


def _box(shape: ET.Element) -> Xyxy | None:
    """Return the box around a shape; None for points, which have none.

    Raises:
        ValueError: a number of it is missing.

    """
    try:
        if shape.tag in _POINTS:
            points = [point.split(",") for point in shape.attrib["points"].split(";")]
            xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
            return min(xs), min(ys), max(xs), max(ys)
        if shape.tag not in _SIDES:
            return None
        a, b, c, d = (float(shape.attrib[name]) for name in _SIDES[shape.tag])
        angle = math.radians(float(shape.get("rotation") or 0))
    except (ValueError, KeyError):
        raise ValueError("it has no whole box") from None
    if shape.tag == "mask":
        return a, b, a + c, b + d
    if shape.tag == "ellipse":
        return a - c, b - d, a + c, b + d
    if not angle:
        return a, b, c, d
    x, y, cos, sin = (a + c) / 2, (b + d) / 2, abs(math.cos(angle)), abs(math.sin(angle))
    width, height = (c - a) * cos + (d - b) * sin, (c - a) * sin + (d - b) * cos
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _add_track(
    images: dict[str, ImageRows],
    element: ET.Element,
    size_hw: tuple[int, int] | None,
    where: str,
) -> None:
    track, label = _whole(element, "id", f"{where}: a track"), element.get("label") or ""
    shapes: list[tuple[int, Xyxy, bool]] = []
    for shape in element:
        frame = _whole(shape, "frame", f"{where}: a box of track {track}")
        try:
            box = _box(shape)
        except ValueError as error:
            image = images.setdefault(f"{frame:06d}", ImageRows(size_hw))
            image.problem = f"{where}: track {track} at frame {frame}: {error}"
            continue
        if box is not None:
            shapes.append((frame, box, shape.get("outside") == "1"))
    shapes.sort()
    if shapes and shapes[-1][0] - shapes[0][0] > _MOST_FRAMES:
        raise AutolabelError(
            f"{where}: track {track} reaches from frame {shapes[0][0]} to {shapes[-1][0]}, and "
            f"at most {_MOST_FRAMES:,} frames are read of one"
        )
    for frame, box in _filled(shapes):
        image = images.setdefault(f"{frame:06d}", ImageRows(size_hw))
        image.rows.append(Row(label, box, track_id=track))


def _whole(element: ET.Element, name: str, what: str) -> int:
    """Return a number that a track cannot do without.

    Raises:
        AutolabelError: it is none.

    """
    text = element.get(name) or "0"
    if not text.isdecimal():
        raise AutolabelError(f"{what} has {name} {text!r}, which is no whole number")
    return int(text)


def _filled(shapes: list[tuple[int, Xyxy, bool]]) -> Iterator[tuple[int, Xyxy]]:
    """Yield the boxes of a track at every frame in which it is to be seen."""
    for (frame, box, outside), (until, to, _) in pairwise(shapes):
        for at in range(frame, until) if not outside else ():
            share = (at - frame) / (until - frame)
            left, top, right, bottom = (a + share * (b - a) for a, b in zip(box, to, strict=True))
            yield at, (left, top, right, bottom)
    if shapes and not shapes[-1][2]:
        yield shapes[-1][:2]
