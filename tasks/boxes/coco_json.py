"""COCO json: its images, each with its annotations, and the names of its categories.

A file that does not tell which annotation belongs to which image and category is refused; whether
an annotation is sound is its reader's question.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from sam2_core.types import AutolabelError

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


_Image = TypeVar("_Image", bound=CocoImage)


class _Content(BaseModel, Generic[_Image]):
    images: list[_Image]
    annotations: list[dict[str, Any]]
    categories: list[_Category]


@dataclass(frozen=True)
class CocoFile(Generic[_Image]):
    """A file's images, each with its annotations, and the names of the categories by id.

    An annotation without an `id` has "number N" there, its place in the file from 0.
    """

    images: list[tuple[_Image, list[dict[str, Any]]]]
    names: dict[int | str, str]


def read_coco_json(data: bytes, where: str, image: type[_Image]) -> CocoFile[_Image]:
    """Read a file whose images have this form.

    Raises:
        AutolabelError: it is none, or does not tell what belongs together.

    """
    try:
        content: _Content[_Image] = TypeAdapter(_Content[image]).validate_python(json.loads(data))  # type: ignore[valid-type]
    except ValidationError as error:
        raise AutolabelError(
            f"{where} is not COCO json, an object with the lists images, annotations and "
            f"categories: {wrong_value(error)}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise AutolabelError(f"{where} is not json: {error}") from error
    _refuse_twice(content.images, f"{where}: images")
    _refuse_twice(content.categories, f"{where}: categories")
    found: dict[int | str, list[dict[str, Any]]] = {one.id: [] for one in content.images}
    for number, one in enumerate(content.annotations):
        values = {"id": f"number {number}"} | one
        try:
            found[_KEY.validate_python(one.get("image_id"))].append(values)
        except (KeyError, ValidationError):
            raise AutolabelError(
                f"{where}: annotation {values['id']}: its image_id {one.get('image_id')!r} is no "
                "image of the file"
            ) from None
    return CocoFile(
        [(one, found[one.id]) for one in content.images],
        {one.id: one.name for one in content.categories},
    )


def wrong_value(error: ValidationError) -> str:
    """Say which value is the first that does not fit, and why."""
    wrong = error.errors()[0]
    place = "".join(f"{one}: " for one in wrong["loc"])
    return f"{place}{wrong['msg']}, and is {wrong['input']!r:.60}"


def _refuse_twice(objects: Sequence[CocoImage | _Category], what: str) -> None:
    for key, count in Counter(one.id for one in objects).most_common(1):
        if count > 1:
            raise AutolabelError(
                f"{what} share the id {key!r}: nobody can tell which of them an annotation means; "
                "give every one an id of its own"
            )
