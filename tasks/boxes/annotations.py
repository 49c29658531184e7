"""Boxes of annotation files: COCO json, CVAT's XML 1.1, the tables of nuImages and T4.

An odd row costs its image only, and the order of the file is kept. Of COCO the segmentations are
ignored; `score` and track ids are taken where they are.

CVAT names each image; of videos, tracks have boxes at numbered frames: between two of them a box
moves evenly, as in CVAT, until one says that it is outside. Polygons, polylines, ellipses and masks
stand for the box around them, and turned boxes for the upright one around.
"""

import base64
import io
import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from sam2_core.types import AutolabelError
from tasks.boxes.imported import (
    FOUR_NUMBERS,
    NUMBER,
    WHOLE_NUMBER,
    ImageRows,
    Row,
    Rows,
    Xyxy,
    looked_up,
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
        AutolabelError: it is none, two images or categories have one id, or its annotations are of
            other images.

    """
    try:
        content = json.loads(data)
        records, annotations = list(content["images"]), list(content["annotations"])
        categories = list(content.get("categories") or ())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = "it needs the lists `images` and `annotations`"
        why = str(error) if isinstance(error, ValueError) else why
        raise AutolabelError(f"{where} is not COCO json: {why}") from error
    images, nameless = _by_id(records, "file_name", where)
    found = {key: ImageRows(_size(one)) for key, one in images.items()}
    named, _ = _by_id(categories, "name", where)
    names = {key: one["name"] for key, one in named.items() if isinstance(one["name"], str | int)}
    strangers = []
    for position, one in enumerate(annotations):
        image = looked_up(one.get("image_id"), found) if isinstance(one, dict) else None
        if image is None:
            strangers.append(position)
        else:
            image.add(f"{where}: annotation number {position}", _coco_row, one, names)
    if strangers and len(strangers) == len(annotations):
        raise AutolabelError(
            f"{where}: none of its annotations ({len(strangers)}) belongs to an image of the file"
        )
    notes = []
    if strangers:
        first = f"the first is number {strangers[0]}"
        notes.append(f"annotations of no image of the file: {len(strangers)}, {first}")
    if nameless:
        notes.append(f"images of the file without an id or a file name: {nameless}")
    by_name = ((_printable(images[key]["file_name"]), image) for key, image in found.items())
    return Rows(tuple(by_name), tuple(notes), tuple(map(str, names.values())))


def _by_id(records: list[Any], name: str, where: str) -> tuple[dict[Hashable, dict[str, Any]], int]:
    """Return the records that have an id and a name, and how many have not."""
    found: dict[Hashable, dict[str, Any]] = {}
    nameless = 0
    for record in records:
        key = record.get("id") if isinstance(record, dict) else None
        if key is None or not isinstance(key, Hashable) or record.get(name) is None:
            nameless += 1
            continue
        other = found.setdefault(key, record)
        if other[name] != record[name]:
            raise AutolabelError(
                f"{where}: {other[name]!r} and {record[name]!r} both have the id {record['id']!r}: "
                "nobody can tell which of them is meant; give every one an id of its own"
            )
    return found, nameless


def _size(record: Document) -> tuple[int, int] | None:
    return size_hw_of(record.get("height"), record.get("width"))


def _coco_row(one: Document, names: Mapping[Hashable, str | int]) -> Row:
    x, y, width, height = read_as(FOUR_NUMBERS, one.get("bbox"), "bbox")
    score = read_as(NUMBER, one.get("score", 1.0), "score")
    category = one.get("category_id")
    name = looked_up(category, names)
    if name is None or str(name) != _printable(name):  # half of a pair: no table can hold it
        raise ValueError(f"category_id {shown(category)} is no category with a name in valid text")
    attributes = one.get("attributes")
    given = {**(attributes if isinstance(attributes, dict) else {}), **one}
    track = next((key for key in _TRACK_NAMES if given.get(key) is not None), "")
    track_id = read_as(WHOLE_NUMBER, given[track], track) if track else None
    return Row(str(name), (x, y, x + width, y + height), score, track_id)


def _printable(name: Any) -> str:
    """Return a name that can be printed; one that is not is no frame's anyway."""
    return str(name).encode(errors="replace").decode()


def read_nuscenes(uri: str) -> Rows:
    """Read the 2D boxes of a dataset, or of a folder of datasets.

    `sample_data` names the pictures of `object_ann`, whose `bbox` is left, top, right, bottom in
    pixels. Where it is missing, the box is that of the mask.

    Raises:
        AutolabelError: it has none, or a table is damaged.

    """
    images: dict[str, ImageRows] = {}
    notes: list[str] = []
    for names, folder, tables in datasets(Folder(uri)):
        for table in tables:
            if f"{TABLE}.json" in (Folder(folder) / table).files:
                notes += _read_tables(storage.join(folder, table), names, images)
    if not images:
        raise AutolabelError(
            f"{storage.redact(uri)} holds no 2D boxes: no {TABLE}.json beside sample_data.json "
            "(nuImages and T4 have it, nuScenes has 3D boxes only)"
        )
    return Rows(tuple(images.items()), tuple(notes))


def _read_tables(folder: str, names: tuple[str, ...], images: dict[str, ImageRows]) -> list[str]:
    def table(name: str) -> Any:
        return rows(storage.join(folder, f"{name}.json"))

    categories = {str(one.get("token")): str(one.get("name")) for one in table("category")}
    by_token: dict[str, ImageRows] = {}
    for one in table("sample_data"):
        size_hw, file_name = _size(one), str(one.get("filename"))
        if size_hw and suffix_of(file_name) in IMAGE_SUFFIXES:
            name = "/".join((*names, file_name))
            by_token[str(one.get("token"))] = images.setdefault(name, ImageRows(size_hw))
    # Of this table alone, so that another dataset beside it leaves them as they are.
    tracks: dict[str, int] = {}
    strays = []
    for one in table(TABLE):
        image = by_token.get(str(one.get("sample_data_token")))
        where = f"{TABLE}.json, token {one.get('token')}"
        if image is None:
            strays.append(where)
        else:
            image.add(where, _table_row, one, image.size_hw, categories, tracks)
    if not strays:
        return []
    return [f"boxes of no picture of the dataset: {len(strays)}, the first is {strays[0]}"]


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
