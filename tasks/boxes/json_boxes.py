"""Boxes of COCO json and of the tables of nuImages and T4: an odd row costs its image only.

COCO: `images`, `annotations` with `bbox` in x, y, width, height, `categories`; segmentations are
ignored; `score` and track ids are taken where they are. The order of the file is kept.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Hashable, Mapping
from typing import Any

from sam2_core.types import AutolabelError
from tasks.boxes.rows import (
    ImageRows,
    Row,
    Rows,
    Xyxy,
    four_numbers,
    looked_up,
    number,
    shown,
    size_hw_of,
    whole_number,
)
from tasks.frames.readers.nuscenes import datasets, rows
from tasks.frames.readers.protocol import Folder
from tasks.frames.source_names import IMAGE_SUFFIXES, suffix_of
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
    x, y, width, height = four_numbers(one.get("bbox"), "bbox")
    score = number(one.get("score", 1.0), "score")
    category = one.get("category_id")
    name = looked_up(category, names)
    if name is None or str(name) != _printable(name):  # half of a pair: no table can hold it
        raise ValueError(f"category_id {shown(category)} is no category with a name in valid text")
    attributes = one.get("attributes")
    given = {**(attributes if isinstance(attributes, dict) else {}), **one}
    track = next((key for key in _TRACK_NAMES if given.get(key) is not None), "")
    track_id = whole_number(given[track], track) if track else None
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
    box = four_numbers(bbox, "bbox") if bbox else _box_of_mask(one.get("mask"), size_hw)
    metadata = one.get("autolabel_metadata") or [{}]
    score = metadata[0].get("score")
    # From 1, as they come: short for people, and exact in JavaScript, as no hash would be.
    track_id = tracks.setdefault(str(instance), len(tracks) + 1) if instance else None
    return Row(
        categories[category], box, number(1.0 if score is None else score, "score"), track_id
    )


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
