"""Boxes of COCO json, one image after another: what is odd in one of them costs that image only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sam2_core.types import AutolabelError, Boxes

_TRACK_NAMES = ("track_id", "instance_id", "tracking_id")
_SHOWN = 60
_LEAST_INT64, _MOST_INT64 = -(2**63), 2**63 - 1


class BadBoxesError(ValueError):
    """Boxes of one image that cannot be read; the message is the reason."""


@dataclass(frozen=True)
class CocoImage:
    """An image of a COCO file.

    Attributes:
        name: its `file_name`.
        size_hw: height and width that the file tells, None where it does not.
        annotations: its annotations, with their numbers in the file.

    """

    name: str
    size_hw: tuple[int, int] | None
    annotations: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True)
class CocoFile:
    """What a COCO file holds.

    Attributes:
        where: its address, for messages.
        images: in the order of the file.
        categories: names by id.
        notes: what of it belongs to no image, in words.

    """

    where: str
    images: tuple[CocoImage, ...]
    categories: Mapping[Hashable, str]
    notes: tuple[str, ...] = ()

    def counts(self) -> Counter[str]:
        """Count the boxes of every class; classes without any are there with 0."""
        counts = Counter(dict.fromkeys(self.categories.values(), 0))
        for image in self.images:
            for _, one in image.annotations:
                category = one.get("category_id")
                if isinstance(category, Hashable) and category in self.categories:
                    counts[self.categories[category]] += 1
        return counts

    def boxes_of(self, image: CocoImage, source: str) -> Boxes:
        """Boxes of an image in the order of the file; `source` is what they say they come from.

        Raises:
            BadBoxesError: one of them cannot be read; names its number in the file.

        """
        boxes, scores, labels, tracks = [], [], [], []
        for number, one in image.annotations:
            try:
                boxes.append(_box(one.get("bbox")))
                scores.append(_number("score", one.get("score", 1.0)))
                labels.append(self._class(one.get("category_id")))
                tracks.append(_track_id(one))
            except ValueError as error:
                where = f"{self.where}: annotation number {number}"
                raise BadBoxesError(f"{where}: {error}") from error
        tracked = [-1 if track is None else track for track in tracks]
        known = any(track is not None for track in tracks)
        return Boxes(boxes, scores, tuple(labels), tracked if known else None, source)  # type: ignore[arg-type]

    def _class(self, category: Any) -> str:
        if not isinstance(category, Hashable) or category not in self.categories:
            raise ValueError(f"category_id {_short(category)} is no category with a name")
        name = self.categories[category]
        if name != _readable(name):  # half of a surrogate pair: no table can hold it
            raise ValueError(f"the name of category {_short(category)} is no valid text: {name!a}")
        return name


def read_coco(data: bytes, where: str) -> CocoFile:
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
    names = _by_id(categories, "name", where)
    found = {
        key: CocoImage(_readable(str(one["file_name"])), _size(one)) for key, one in images.items()
    }
    strangers = []
    for number, one in enumerate(annotations):
        key = one.get("image_id") if isinstance(one, dict) else None
        if isinstance(key, Hashable) and key in found:
            found[key].annotations.append((number, one))
        else:
            strangers.append(number)
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
    classes = {
        key: str(one["name"]) for key, one in names.items() if isinstance(one["name"], str | int)
    }
    return CocoFile(where, tuple(found.values()), classes, tuple(notes))


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


def _box(bbox: Any) -> tuple[float, float, float, float]:
    """Corners of a box, from x, y, width and height."""
    try:
        x, y, width, height = (float(value) for value in bbox)
    except (ValueError, TypeError, OverflowError):
        wanted = "four numbers: x, y, width, height"
        raise ValueError(f"bbox must be {wanted}, and is {_short(bbox)}") from None
    return x, y, x + width, y + height


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{name} must be a number, and is {_short(value)}") from None


def _short(value: Any) -> str:
    """Show a value of the file as json, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _readable(name: str) -> str:
    """Return a name that can be printed; one that is not is no frame's anyway."""
    return name.encode(errors="replace").decode()
