"""COCO json: its images, each with its annotations, and the names of its categories.

A file that does not tell which annotation belongs to which image and category is refused; whether
an annotation is sound is its reader's question. Results, a list of annotations alone, are read
beside the file whose ids they have.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from sam2_core.types import AutolabelError
from tasks.boxes.imported import FOUR_NUMBERS, NUMBER, Xyxy, read_as, turned
from tasks.frames.identity import plain_name

# Some tools write numbers as text.
Key = Annotated[int | str, Field(union_mode="left_to_right")]
_KEY: TypeAdapter[int | str] = TypeAdapter(Key)


class CocoImage(BaseModel):
    """An image; not every tool tells its size, and only ours of which frame it is a copy."""

    id: Key
    file_name: Annotated[str, Field(min_length=1)]
    height: Any = None
    width: Any = None
    frame_uri: str = ""


class _Category(BaseModel):
    id: Key
    name: Annotated[str, Field(pattern=r"\S", coerce_numbers_to_str=True)]


class _Content(BaseModel):
    images: list[CocoImage]
    annotations: list[dict[str, Any]]
    categories: list[_Category]


@dataclass(frozen=True)
class CocoFile:
    """A file's images, each with its annotations, and the names of the categories by id.

    An annotation without an `id` has "number N" there, its place in the file from 0.
    """

    images: list[tuple[CocoImage, list[dict[str, Any]]]]
    names: dict[int | str, str]

    def label_of(self, annotation: Mapping[str, Any]) -> str:
        """Return the name of an annotation's category; a ValueError where the file has none."""
        category = annotation.get("category_id")
        try:
            return self.names[_KEY.validate_python(category)]
        except (KeyError, ValidationError):
            raise ValueError(f"category_id {category!r:.60} is none of the file's") from None


def box_of(annotation: Mapping[str, Any]) -> Xyxy:
    """Return the box of an annotation, upright; a ValueError where it has none.

    CVAT turns the `bbox` of what has no segmentation, by the attribute `rotation`.
    """
    if annotation.get("bbox") is None:
        raise ValueError("it has no bbox: write the box around it, or leave the annotation out")
    if annotation.get("bbox_mode", 1) != 1:  # Detectron2's, whose 1 is COCO's form
        raise ValueError("its bbox_mode is not 1: write bbox as x, y, width, height in pixels")
    x, y, width, height = read_as(FOUR_NUMBERS, annotation.get("bbox"), "bbox")
    attributes = annotation.get("attributes")
    rotation = attributes.get("rotation") if isinstance(attributes, dict) else None
    if not rotation or annotation.get("segmentation"):
        return x, y, x + width, y + height
    return turned((x, y, x + width, y + height), read_as(NUMBER, rotation, "rotation"))


# Keys that tell which other form a json has.
_UNREAD = {
    "LabelMe": {"shapes", "imagePath"},
    "Label Studio": {"data", "annotations"},
    "FiftyOne": {"samples"},
    "Supervisely": {"objects", "size"},
    "V7 Darwin": {"item", "annotations"},
    "Datumaro": {"items", "categories"},
    "CreateML": {"image", "annotations"},
    "VIA": {"regions", "filename"},
    "BDD100K": {"labels", "name"},
}


def is_crowd(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation is of a region with many objects, which is no object itself."""
    return str(annotation.get("iscrowd")) in {"1", "1.0", "True"}


def read_coco_json(data: bytes, where: str, known: bytes = b"") -> CocoFile:
    """Read a file.

    Args:
        data: the file, or results.
        where: its name, for messages.
        known: the file with the images and categories of results.

    Raises:
        AutolabelError: it is none, or does not tell what belongs together.

    """
    document = _loaded(data, where)
    if (known and document == []) or _has_keys(document, {"image_id", "category_id"}):
        if not known:
            raise AutolabelError(
                f"{where} is a list of COCO results, which names neither pictures nor classes: "
                "give the COCO json whose ids it has with --box-names"
            )
        beside = _loaded(known, f"what --box-names names for {where}")
        document = {**(beside if isinstance(beside, dict) else {}), "annotations": document}
    elif known:
        raise AutolabelError(f"{where} names its classes: leave out --box-names")
    try:
        content = _Content.model_validate(document)
    except ValidationError as error:
        for form, keys in _UNREAD.items():
            if _has_keys(document, keys):
                raise AutolabelError(
                    f"{where} is {form}'s json, which is not read: have it exported as COCO json, "
                    "Pascal VOC, CVAT's XML or YOLO's text files"
                ) from None
        raise AutolabelError(
            f"{where} is not COCO json, an object with the lists images, annotations and "
            f"categories: {wrong_value(error)}"
        ) from error
    _refuse_twice(content.images, f"{where}: images")
    _refuse_twice(content.categories, f"{where}: categories")
    found: dict[int | str, tuple[CocoImage, list[dict[str, Any]]]] = {
        each.id: (each, []) for each in content.images
    }
    for number, annotation in enumerate(content.annotations):
        values = {"id": f"number {number}"} | annotation
        place = f"{where}: annotation {values['id']}: its image_id {values.get('image_id')!r:.60}"
        try:
            image, annotations = found[_KEY.validate_python(annotation.get("image_id"))]
        except (KeyError, ValidationError):
            raise AutolabelError(f"{place} is no image of the file") from None
        told = annotation.get("file_name")
        if isinstance(told, str) and _stem(told) != _stem(image.file_name):
            raise AutolabelError(
                f"{place} is {image.file_name!r:.80}, its file_name {told!r:.80}: it is not clear "
                "which of them it belongs to; give the json whose ids these are"
            )
        annotations.append(values)
    return CocoFile(
        list(found.values()),
        {category.id: category.name for category in content.categories},
    )


def _stem(name: str) -> str:
    return PurePosixPath(plain_name(name)).stem


def _loaded(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise AutolabelError(f"{where} is not json: line {line} is damaged") from error


def _has_keys(document: Any, keys: set[str]) -> bool:
    """Whether an object, or the first one of a list or in an object, has these keys."""
    inner = document.values() if isinstance(document, dict) else document
    objects = [document, *(islice(inner, 1) if isinstance(document, dict | list) else ())]
    return any(isinstance(found, dict) and keys <= found.keys() for found in objects)


def wrong_value(error: ValidationError) -> str:
    """Say which value is the first that does not fit, and why."""
    wrong = error.errors()[0]
    place = "".join(f"{part}: " for part in wrong["loc"])
    why = wrong["msg"].partition(" or instance of")[0]
    return f"{place}{why}, and is {wrong['input']!r:.60}"


def _refuse_twice(objects: Sequence[CocoImage | _Category], what: str) -> None:
    for key, count in Counter(found.id for found in objects).most_common(1):
        if count > 1:
            raise AutolabelError(
                f"{what} share the id {key!r}: it is not clear which of them an annotation means; "
                "give every one an id of its own"
            )
