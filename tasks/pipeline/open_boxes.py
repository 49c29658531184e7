"""Boxes that somebody else made: from files, or from a field of a FiftyOne dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from sam2_core.types import AutolabelError
from tasks.boxes.field_boxes import dataset_and_field, field_boxes, is_field
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import ImportedBoxes

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
    return _boxes_of_dataset(address)


def _boxes_of_dataset(address: str) -> ImportedBoxes:
    from tasks.dataset.database import ensure_database
    from tasks.dataset.database_access import reach_database
    from tasks.dataset.schema import sample_collection

    name, field = dataset_and_field(address)
    ensure_database()
    reach_database()
    import fiftyone as fo
    import fiftyone.core.odm as foo

    if not fo.dataset_exists(name):
        known = ", ".join(sorted(fo.list_datasets())[:10]) or "none yet"
        raise AutolabelError(f"{address}: no dataset '{name}' in FiftyOne (there are: {known})")
    dataset = fo.load_dataset(name)
    of_frames = _is_of_frames(dataset, field, address)
    wanted = {field: 1, "filepath": 1, "metadata": 1, "frame_uri": 1}
    samples = sample_collection(dataset).find({}, wanted).sort("filepath", 1)
    if not of_frames:
        return field_boxes(address, samples)
    frames = foo.get_db_conn()[dataset._frame_collection_name]

    def frames_of(sample_id: Any) -> Iterable[dict[str, Any]]:
        found = frames.find({"_sample_id": sample_id}, {field: 1, "frame_number": 1})
        return cast("Iterable[dict[str, Any]]", found.sort("frame_number", 1))

    return field_boxes(address, samples, frames_of)


def _is_of_frames(dataset: Any, field: str, address: str) -> bool:
    """Whether the field is one of the frames of videos."""
    image_fields = dataset.get_field_schema()
    frame_fields = dataset.get_frame_field_schema() or {}
    for fields, of_frames in ((image_fields, False), (frame_fields, True)):
        kind = _kind(fields.get(field))
        if kind in _LABELS:
            return of_frames
        if field in fields:
            what = kind or type(fields[field]).__name__
            raise AutolabelError(
                f"{address}: the field holds {what}; boxes are in fields of {_LABELS[0]}"
            )
    boxes = ", ".join(sorted(_box_fields(image_fields) | _box_fields(frame_fields))) or "none"
    raise AutolabelError(f"{address}: no field '{field}' in the dataset; with boxes it has {boxes}")


def _box_fields(fields: dict[str, Any]) -> set[str]:
    return {name for name, one in fields.items() if _kind(one) in _LABELS}


def _kind(field: Any) -> str | None:
    """Name of what documents a field holds; None where it holds none."""
    return getattr(getattr(field, "document_type", None), "__name__", None)
