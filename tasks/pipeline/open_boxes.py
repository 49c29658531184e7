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
    from tasks.dataset.database import ensure_database
    from tasks.dataset.database_access import reach_database
    from tasks.dataset.layout import frame_collection, sample_collection

    name, field = dataset_and_field(address)
    ensure_database()
    reach_database()
    import fiftyone as fo

    if not fo.dataset_exists(name):
        known = ", ".join(sorted(fo.list_datasets())[:10]) or "none yet"
        raise AutolabelError(f"{address}: no dataset '{name}' in FiftyOne (there are: {known})")
    dataset = fo.load_dataset(name)
    of_frames = _is_of_frames(dataset, field, address)
    wanted = {field: 1, "filepath": 1, "metadata": 1, "frame_uri": 1}
    samples = sample_collection(dataset).find({}, wanted).sort("filepath", 1)
    if not of_frames:
        return field_boxes(address, samples)
    frames = frame_collection(dataset)

    def frames_of(sample_id: Any) -> Iterable[dict[str, Any]]:
        found = frames.find({"_sample_id": sample_id}, {field: 1, "frame_number": 1})
        return cast("Iterable[dict[str, Any]]", found.sort("frame_number", 1))

    return field_boxes(address, samples, frames_of)


def _is_of_frames(dataset: Any, field: str, address: str) -> bool:
    """Whether the field is one of the frames of videos."""
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
        name: (getattr(one, "document_type", None) or type(one)).__name__
        for name, one in fields.items()
    }
