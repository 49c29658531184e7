"""Boxes of COCO json: what is odd in one image costs that image only."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from sam2_core.types import AutolabelError
from tasks.boxes.rows import ImageRows, Row, Rows

_TRACK_NAMES = ("track_id", "instance_id", "tracking_id")
_SHOWN = 60
_LEAST_INT64, _MOST_INT64 = -(2**63), 2**63 - 1


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
        decoding = isinstance(error, ValueError)
        why = str(error) if decoding else "it needs the lists `images` and `annotations`"
        raise AutolabelError(f"{where} is not COCO json: {why}") from error
    images = _by_id(records, "file_name", where)
    found = {key: ImageRows(_size(one)) for key, one in images.items()}
    names = {
        key: str(one["name"])
        for key, one in _by_id(categories, "name", where).items()
        if isinstance(one["name"], str | int)
    }
    strangers = []
    for number, one in enumerate(annotations):
        image = _known(one.get("image_id"), found) if isinstance(one, dict) else None
        if image is None:
            strangers.append(number)
            continue
        try:
            image.rows.append(_row(one, names))
        except ValueError as error:
            image.problem = image.problem or f"{where}: annotation number {number}: {error}"
    if strangers and len(strangers) == len(annotations):
        raise AutolabelError(
            f"{where}: none of its annotations ({len(strangers)}) belongs to an image of the file"
        )
    notes = []
    if strangers:
        first = f"the first is number {strangers[0]}"
        notes.append(f"annotations of no image of the file: {len(strangers)}, {first}")
    nameless = sum(not _has(record, "file_name") for record in records)
    if nameless:
        notes.append(f"images of the file without an id or a file name: {nameless}")
    named = ((_readable(str(images[key]["file_name"])), rows) for key, rows in found.items())
    return Rows(tuple(named), tuple(notes), tuple(names.values()))


def _known(key: Any, values: Mapping[Hashable, Any]) -> Any:
    return values.get(key) if isinstance(key, Hashable) else None


def _has(record: Any, name: str) -> bool:
    if not isinstance(record, dict) or record.get(name) is None:
        return False
    return record.get("id") is not None and isinstance(record["id"], Hashable)


def _by_id(records: list[Any], name: str, where: str) -> dict[Hashable, dict[str, Any]]:
    """Return records by id; those without an id or a name are left out."""
    found: dict[Hashable, dict[str, Any]] = {}
    for record in records:
        if not _has(record, name):
            continue
        other = found.setdefault(record["id"], record)
        if other[name] != record[name]:
            raise AutolabelError(
                f"{where}: {other[name]!r} and {record[name]!r} both have the id {record['id']!r}: "
                "nobody can tell which of them is meant; give every one an id of its own"
            )
    return found


def _size(record: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) where the file tells; exporters that do not know write 0."""
    try:
        height, width = int(record["height"]), int(record["width"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return (height, width) if height > 0 and width > 0 else None


def _row(one: Mapping[str, Any], names: Mapping[Hashable, str]) -> Row:
    """Return the box of an annotation.

    Raises:
        ValueError: it cannot be read; says why.

    """
    try:
        x, y, width, height = (float(value) for value in one.get("bbox"))  # type: ignore[union-attr]
    except (ValueError, TypeError, OverflowError):
        wanted, found = "four numbers: x, y, width, height", _short(one.get("bbox"))
        raise ValueError(f"bbox must be {wanted}, and is {found}") from None
    try:
        score = float(one.get("score", 1.0))
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"score must be a number, and is {_short(one['score'])}") from None
    category = one.get("category_id")
    name = _known(category, names)
    if name is None:
        raise ValueError(f"category_id {_short(category)} is no category with a name")
    if name != _readable(name):  # half of a surrogate pair: no table can hold it
        raise ValueError(f"the name of category {_short(category)} is no valid text: {name!a}")
    return Row(name, (x, y, x + width, y + height), score, _track_id(one))


def _track_id(annotation: Mapping[str, Any]) -> int | None:
    attributes = annotation.get("attributes")
    attributes = attributes if isinstance(attributes, dict) else {}
    for name in _TRACK_NAMES:
        value = annotation.get(name, attributes.get(name))
        if value is None:
            continue
        try:
            number = int(value)
        except (ValueError, TypeError, OverflowError):
            raise ValueError(f"{name} {_short(value)} is not a whole number") from None
        if isinstance(value, float) and value != number:
            raise ValueError(f"{name} {value!r} is not a whole number")
        if not _LEAST_INT64 <= number <= _MOST_INT64:
            raise ValueError(f"{name} has more than 64 bits")
        return number
    return None


def _short(value: Any) -> str:
    """Show a value of the file as json, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _readable(name: str) -> str:
    """Return a name that can be printed; one that is not is no frame's anyway."""
    return name.encode(errors="replace").decode()
