"""Boxes that somebody else made: from files, or from a field of a FiftyOne dataset.

`dataset:NAME.FIELD` names a field of anybody's dataset; samples are read as MongoDB holds them. A
sample has the boxes of the picture at its `filepath`; for one that this system loaded, for that at
its `frame_uri`, which may be elsewhere or in a video. Names of pictures are relative to the folder
that holds all of them.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, cast

from sam2_core.types import AutolabelError
from tasks.boxes.coco_json import is_crowd
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import (
    FOUR_NUMBERS,
    NUMBER,
    WHOLE_NUMBER,
    ImageRows,
    ImportedBoxes,
    Row,
    Rows,
    read_as,
    size_hw_of,
)
from tasks.frames.identity import part_of

_LABELS = ("Detections", "Detection")


def open_boxes(address: str, names_uri: str = "") -> ImportedBoxes:
    """Open boxes.

    Args:
        address: as `import_boxes` takes it, or `dataset:NAME.FIELD`.
        names_uri: names of the classes of YOLO's text files.

    Raises:
        AutolabelError: there are none, or they are of no known form.

    """
    if not is_field(address):
        return import_boxes(address, names_uri)
    if names_uri:
        raise AutolabelError(f"{address} names its classes: leave out --box-names")
    from tasks.dataset.layout import frame_collection, sample_collection
    from tasks.dataset.schema import open_dataset

    name, field = dataset_and_field(address)
    dataset = open_dataset(name, ours=False)
    of_frames = is_of_frames(dataset, field, address)
    wanted = {field: 1, "filepath": 1, "metadata": 1, "frame_uri": 1}
    samples = sample_collection(dataset).find({}, wanted).sort("filepath", 1)
    if not of_frames:
        return field_boxes(address, samples)
    frames = frame_collection(dataset)

    def frames_of(sample_id: Any) -> Iterable[dict[str, Any]]:
        found = frames.find({"_sample_id": sample_id}, {field: 1, "frame_number": 1})
        return cast("Iterable[dict[str, Any]]", found.sort("frame_number", 1))

    return field_boxes(address, samples, frames_of)


def is_of_frames(dataset: Any, field: str, address: str) -> bool:
    """Whether a field of labels is one of the frames of videos.

    Raises:
        AutolabelError: there is no such field, or it holds no labels; says which do.

    """
    image_fields = _kinds(dataset.get_field_schema())
    frame_fields = _kinds(dataset.get_frame_field_schema() or {})
    for kinds, of_frames in ((image_fields, False), (frame_fields, True)):
        if kinds.get(field) in _LABELS:
            return of_frames
        if field in kinds:
            raise AutolabelError(
                f"{address}: the field holds {kinds[field]}; boxes are in fields of {_LABELS[0]}"
            )
    fields = image_fields | frame_fields
    boxes = ", ".join(sorted(name for name, kind in fields.items() if kind in _LABELS)) or "none"
    raise AutolabelError(f"{address}: no field '{field}' in the dataset; with boxes it has {boxes}")


def _kinds(fields: dict[str, Any]) -> dict[str, str]:
    """Return what each field holds: the class of its documents, else its own."""
    return {
        name: (getattr(field, "document_type", None) or type(field)).__name__
        for name, field in fields.items()
    }


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
    for sample in samples:
        path = str(sample.get("frame_uri") or sample.get("filepath"))
        size = sample.get("metadata") or {}
        if frames_of is not None:
            size_hw = size_hw_of(size.get("frame_height"), size.get("frame_width"))
            for frame in frames_of(sample["_id"]):
                index = int(frame["frame_number"]) - 1  # FiftyOne counts from 1
                found[_parts(f"{path}#frame={index}")] = _image(frame, field, size_hw)
            continue
        size_hw = size_hw_of(size.get("height"), size.get("width"))
        found[_parts(path)] = _image(sample, field, size_hw)
    if not any(image.rows or image.problem for image in found.values()):
        raise AutolabelError(f"no sample of {address.removeprefix(SCHEME)} has a box")
    # How many folders all names begin with.
    levels = zip(*(parts[:-1] for parts in found), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    images = {"/".join(parts[common:]): image for parts, image in found.items()}
    stamp = f"imported:{address.removeprefix(SCHEME)}"
    return ImportedBoxes.of_rows(Rows(tuple(images.items())), address, stamp)


def _parts(uri: str) -> tuple[str, ...]:
    """Folders and name of a picture; a video's frame is a number in a folder called like it."""
    part = part_of(uri)
    if part is None:
        return PurePosixPath(uri.replace("\\", "/")).parts
    path = PurePosixPath(part.path)
    return path.parts if part.is_member else (*path.with_suffix("").parts, f"{part.number:06d}")


def _image(sample: Document, field: str, size_hw: tuple[int, int] | None) -> ImageRows:
    """Rows of a sample: in pixels where it knows its size, in fractions where it does not."""
    image = ImageRows(size_hw, fractions=size_hw is None)
    value = sample.get(field) or {}
    detections = value.get("detections") if "detections" in value else [value] if value else []
    for position, detection in enumerate(detections or []):
        image.add(f"{field}, label {position}", _row, detection, size_hw or (1, 1))
    return image


def _row(detection: Document, size_hw: tuple[int, int]) -> Row | str:
    if is_crowd(detection):
        return "crowd"
    if not str(detection.get("label") or "").strip():
        raise ValueError("it has no label")
    left, top, width, height = read_as(FOUR_NUMBERS, detection.get("bounding_box"), "bounding_box")
    rows, columns = size_hw
    corners = (left * columns, top * rows, (left + width) * columns, (top + height) * rows)
    confidence, index = detection.get("confidence"), detection.get("index")
    score = 1.0 if confidence is None else read_as(NUMBER, confidence, "confidence")
    track_id = None if index is None else read_as(WHOLE_NUMBER, index, "index")
    return Row(str(detection["label"]), corners, score, track_id)
