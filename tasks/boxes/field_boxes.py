"""Boxes in a field of a FiftyOne dataset, of anybody's: `dataset:NAME.FIELD`.

What is read are the samples as MongoDB holds them. A sample stands for the picture at its
`filepath`; for one that this system loaded, for that at its `frame_uri`, which may be elsewhere or
in a video. Names of pictures are relative to the folder that holds all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from sam2_core.types import AutolabelError
from tasks.boxes.imported import ImportedBoxes
from tasks.boxes.rows import ImageRows, Row, Rows
from tasks.frames.identity import part_of

SCHEME = "dataset:"
Document = Mapping[str, Any]


def is_field(address: str) -> bool:
    """Whether an address names a field of a dataset, not a file."""
    return address.startswith(SCHEME)


def dataset_and_field(address: str) -> tuple[str, str]:
    """Take `dataset:NAME.FIELD` apart at its last dot; names of datasets may have dots.

    Raises:
        AutolabelError: there is no name, or no field.

    """
    name, _, field = address.removeprefix(SCHEME).rpartition(".")
    if not name or not field:
        raise AutolabelError(
            f"{address} names no field: write dataset:NAME.FIELD, such as "
            "dataset:drives.predictions"
        )
    return name, field


def field_boxes(
    address: str,
    samples: Iterable[Document],
    frames_of: Callable[[Any], Iterable[Document]] | None = None,
) -> ImportedBoxes:
    """Read the boxes of samples.

    Args:
        address: as given, for messages and the stamp.
        samples: documents with `filepath`, `frame_uri`, `metadata` and the field, `_id`.
        frames_of: where samples are videos, returns the documents of the frames of one, by `_id`.

    Raises:
        AutolabelError: no sample has such boxes.

    """
    field = dataset_and_field(address)[1]
    found: dict[tuple[str, ...], ImageRows] = {}
    without = 0
    for sample in samples:
        path = str(sample.get("frame_uri") or sample.get("filepath"))
        if frames_of is not None:
            for one in frames_of(sample["_id"]):
                number = int(one["frame_number"]) - 1  # FiftyOne counts from 1
                image = _image(one, field, _size_hw(sample, "frame_height", "frame_width"))
                found[_parts(f"{path}#frame={number}")] = image
            continue
        without += sample.get(field) is None
        found[_parts(path)] = _image(sample, field, _size_hw(sample, "height", "width"))
    if not any(image.rows or image.problem for image in found.values()):
        raise AutolabelError(f"no sample of {address.removeprefix(SCHEME)} has a box")
    common = _common(list(found))
    images = {"/".join(parts[common:]): image for parts, image in found.items()}
    notes = (f"samples whose field {field} is not set: {without}",) if without else ()
    rows = Rows(tuple(images.items()), notes)
    stamp = f"imported:{address.removeprefix(SCHEME)}"
    return ImportedBoxes.of_rows(rows, address, stamp)


def _parts(uri: str) -> tuple[str, ...]:
    """Folders and name of a picture; a video's frame is a number in a folder called like it."""
    part = part_of(uri)
    if part is None:
        return PurePosixPath(uri.replace("\\", "/")).parts
    path = PurePosixPath(part.path)
    return path.parts if part.is_member else (*path.with_suffix("").parts, f"{part.number:06d}")


def _common(names: list[tuple[str, ...]]) -> int:
    """How many folders all names begin with."""
    folders = [name[:-1] for name in names]
    same = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    return sum(1 for _ in same)


def _size_hw(sample: Document, height: str, width: str) -> tuple[int, int] | None:
    metadata = sample.get("metadata") or {}
    known = metadata.get(height) and metadata.get(width)
    return (int(metadata[height]), int(metadata[width])) if known else None


def _image(sample: Document, field: str, size_hw: tuple[int, int] | None) -> ImageRows:
    """Rows of a sample: in pixels where it knows its size, in fractions where it does not."""
    image = ImageRows(size_hw, fractions=size_hw is None)
    value = sample.get(field) or {}
    detections = value.get("detections") if "detections" in value else [value] if value else []
    for number, one in enumerate(detections or []):
        try:
            image.rows.append(_row(one, size_hw or (1, 1)))
        except (ValueError, TypeError, KeyError) as error:
            image.problem = image.problem or f"{field}, label {number}: {error}"
    return image


def _row(one: Document, size_hw: tuple[int, int]) -> Row:
    box = one.get("bounding_box")
    if not box or len(box) != 4:
        raise ValueError("it has no bounding_box")
    if one.get("label") is None:
        raise ValueError("it has no label")
    left, top, width, height = (float(side) for side in box)
    rows, columns = size_hw
    corners = (left * columns, top * rows, (left + width) * columns, (top + height) * rows)
    confidence, index = one.get("confidence"), one.get("index")
    score = 1.0 if confidence is None else float(confidence)
    return Row(str(one["label"]), corners, score, None if index is None else int(index))
