"""Boxes of COCO json and of the tables of nuImages and T4.

An odd row costs its image only, and the order of the file is kept. Of COCO the segmentations are
ignored; scores and track ids are taken where they are. Regions of crowds are counted, and no box.
"""

import base64
from collections.abc import Mapping
from typing import Any

from sam2_core.mask_geometry import mask_of
from sam2_core.types import AutolabelError
from tasks.boxes.coco_json import CocoFile, box_of, is_crowd, read_coco_json
from tasks.boxes.imported import (
    FOUR_NUMBERS,
    NUMBER,
    ImageRows,
    Row,
    Rows,
    Xyxy,
    read_as,
    score_and_track,
    shown,
    size_hw_of,
)
from tasks.frames.identity import IMAGE_SUFFIXES, suffix_of
from tasks.frames.listing import Folder
from tasks.frames.readers.nuscenes import datasets, rows
from tasks.store import storage

TABLE = "object_ann"
Document = Mapping[str, Any]


def read_coco(data: bytes, where: str, known: bytes = b"") -> Rows:
    """Read a COCO file, or results, whose images and categories are in the file `known`.

    Raises:
        AutolabelError: it is none, or does not tell what belongs together.

    """
    file = read_coco_json(data, where, known)
    found = []
    for image, annotations in file.images:
        size_hw = size_hw_of(image.height, image.width)
        rows_of_image = ImageRows(size_hw, frame_uri=image.frame_uri)
        for values in annotations:
            rows_of_image.add(f"{where}: annotation {values['id']}", _coco_row, values, file)
        found.append((image.file_name, rows_of_image))
    return Rows(tuple(found), tuple(file.names.values()))


def _coco_row(values: Document, file: CocoFile) -> Row | str:
    if is_crowd(values):
        return "crowd"
    box = box_of(values)
    label = file.label_of(values)
    attributes = values.get("attributes")
    given = {**(attributes if isinstance(attributes, dict) else {}), **values}
    return Row(label, box, *score_and_track(given))


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

    categories = {
        str(category.get("token")): str(category.get("name") or "")
        for category in table("category")
    }
    by_token: dict[str, ImageRows] = {}
    for picture in table("sample_data"):
        size_hw, file_name = (
            size_hw_of(picture.get("height"), picture.get("width")),
            str(picture.get("filename")),
        )
        if size_hw and suffix_of(file_name) in IMAGE_SUFFIXES:
            name = "/".join((*names, file_name))
            by_token[str(picture.get("token"))] = images.setdefault(name, ImageRows(size_hw))
    # Of this table alone, so that another dataset beside it leaves them as they are.
    tracks: dict[str, int] = {}
    for annotation in table(TABLE):
        picture, where = (
            str(annotation.get("sample_data_token")),
            f"{TABLE}.json, token {annotation.get('token')}",
        )
        if picture not in by_token:
            raise AutolabelError(f"{folder}: {where}: sample_data.json has no such picture")
        image = by_token[picture]
        image.add(where, _table_row, annotation, image.size_hw, categories, tracks)


def _table_row(
    annotation: Document,
    size_hw: tuple[int, int],
    categories: Mapping[str, str],
    tracks: dict[str, int],
) -> Row:
    category, instance = str(annotation.get("category_token")), annotation.get("instance_token")
    if not categories.get(category, "").strip():
        raise ValueError(f"category_token {category} is in no table, or has no name there")
    bbox = annotation.get("bbox")
    box = (
        read_as(FOUR_NUMBERS, bbox, "bbox")
        if bbox
        else _box_of_mask(annotation.get("mask"), size_hw)
    )
    metadata = annotation.get("autolabel_metadata")
    first = metadata[0] if isinstance(metadata, list) and metadata else None
    score = first.get("score") if isinstance(first, dict) else None
    # From 1, as they come: short for people, and exact in JavaScript, as no hash would be.
    track_id = tracks.setdefault(str(instance), len(tracks) + 1) if instance else None
    score = read_as(NUMBER, 1.0 if score is None else score, "score")
    return Row(categories[category], box, score, track_id)


def _box_of_mask(mask: Any, size_hw: tuple[int, int]) -> Xyxy:
    """Return the box around a mask.

    Its `size` is (width, height) by the documentation of nuImages and T4 and (height, width) in
    their data, so it does not tell the order: that of `sample_data` counts, another pair does not.
    """
    if not isinstance(mask, dict):
        raise ValueError("there is neither a bbox nor a mask")
    if mask.get("size") not in ([*size_hw], [*size_hw[::-1]]):
        size = f"{size_hw[1]}x{size_hw[0]}"
        raise ValueError(f"its mask is of size {shown(mask.get('size'))}, the picture {size}")
    try:
        counts = base64.b64decode(mask.get("counts") or "")
    except (TypeError, ValueError):
        counts = b""
    left, top, width, height = mask_of(counts, size_hw).bbox().tolist()
    return left, top, left + width, top + height
