"""Boxes in the tables of nuImages and T4: `object_ann`, whose pictures `sample_data` names.

`bbox` is left, top, right, bottom in pixels. Where it is missing, the box is that of the mask. Its
`size` is (width, height) by the documentation of both and (height, width) in their data, so it does
not tell the order: that of `sample_data` is taken, and another pair is refused.
"""

from __future__ import annotations

import base64
from typing import Any

from sam2_core.types import AutolabelError
from tasks.boxes.rows import ImageRows, Row, Rows
from tasks.frames.patterns import IMAGE_SUFFIXES, suffix_of
from tasks.frames.readers.json_rows import rows
from tasks.frames.readers.nuscenes import datasets
from tasks.frames.readers.protocol import Place
from tasks.store import storage

TABLE = "object_ann"


def read_nuscenes(uri: str) -> Rows:
    """Read the 2D boxes of a dataset, or of a folder of datasets.

    Raises:
        AutolabelError: it has none, or a table is damaged.

    """
    images: dict[str, ImageRows] = {}
    notes: list[str] = []
    for names, folder, tables in datasets(Place(uri)):
        for table in tables:
            if f"{TABLE}.json" in (Place(folder) / table).files:
                notes += _read(storage.join(folder, table), names, images)
    if not images:
        raise AutolabelError(
            f"{storage.redact(uri)} holds no 2D boxes: no {TABLE}.json beside sample_data.json "
            "(nuImages and T4 have it, nuScenes has 3D boxes only)"
        )
    return Rows(tuple(images.items()), tuple(notes))


def _read(folder: str, names: tuple[str, ...], images: dict[str, ImageRows]) -> list[str]:
    def table(name: str) -> Any:
        return rows(storage.join(folder, f"{name}.json"))

    categories = {str(one.get("token")): str(one.get("name")) for one in table("category")}
    by_token: dict[str, ImageRows] = {}
    for one in table("sample_data"):
        size = (one.get("height"), one.get("width"))
        known = all(isinstance(side, int) and side > 0 for side in size)
        known = known and suffix_of(str(one.get("filename"))) in IMAGE_SUFFIXES
        name = "/".join((*names, str(one.get("filename"))))
        if known:
            by_token[str(one.get("token"))] = images.setdefault(name, ImageRows(size))
    # Of this table alone, so that another dataset beside it leaves them as they are.
    tracks: dict[str, int] = {}
    strays = []
    for one in table(TABLE):
        image = by_token.get(str(one.get("sample_data_token")))
        where = f"{TABLE}.json, token {one.get('token')}"
        if image is None:
            strays.append(where)
            continue
        try:
            image.rows.append(_row(one, image, categories, tracks))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            image.problem = image.problem or f"{where}: {error}"
    if not strays:
        return []
    return [f"boxes of no picture of the dataset: {len(strays)}, the first is {strays[0]}"]


def _row(
    one: dict[str, Any], image: ImageRows, categories: dict[str, str], tracks: dict[str, int]
) -> Row:
    category = str(one.get("category_token"))
    if category not in categories:
        raise ValueError(f"category_token {category} is in no table")
    bbox = one.get("bbox")
    if bbox:
        left, top, right, bottom = (float(side) for side in bbox)
    else:
        left, top, right, bottom = _box_of_mask(one.get("mask"), image.size_hw or (0, 0))
    instance = one.get("instance_token")
    metadata = one.get("autolabel_metadata") or [{}]
    score = metadata[0].get("score")
    return Row(
        categories[category], (left, top, right, bottom),
        1.0 if score is None else float(score),
        # From 1, as they come: short for people, and exact in JavaScript, as no hash would be.
        tracks.setdefault(str(instance), len(tracks) + 1) if instance else None,
    )  # fmt: skip


def _box_of_mask(mask: Any, size_hw: tuple[int, int]) -> tuple[float, float, float, float]:
    from pycocotools import mask as coco_mask

    if not isinstance(mask, dict):
        raise ValueError("there is neither a bbox nor a mask")
    size = [int(side) for side in mask["size"]]
    if sorted(size) != sorted(size_hw):
        raise ValueError(f"its mask is of size {size}, the picture {size_hw[1]}x{size_hw[0]}")
    counts = base64.b64decode(mask["counts"])
    left, top, width, height = coco_mask.toBbox({"size": [*size_hw], "counts": counts}).tolist()
    return left, top, left + width, top + height
