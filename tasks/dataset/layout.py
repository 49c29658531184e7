"""FiftyOne's private layout: how it stores datasets, samples and labels. All that we use of it.

Written for fiftyone 1.22. `add_samples` spends nearly all its time making and checking Python
objects, so loads and decisions write documents, and reviews read them, without FiftyOne's classes.
Any other FiftyOne is refused before the first sample is touched.
"""

import datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

from sam2_core.types import AutolabelError

WRITTEN_FOR = "1.22"
Document = dict[str, Any]


def detections(labels: Any) -> Document:
    """Value of a field of labels."""
    return {"_cls": "Detections", "detections": labels}


def detection(identity: Any, label: str, **more: Any) -> Document:
    """Label with its other fields: `bounding_box` (x, y, width, height, relative) at least."""
    return {
        "_id": identity, "_cls": "Detection", "attributes": {}, "tags": [], "label": label, **more
    }  # fmt: skip


def image_metadata(size_hw: tuple[int, int], **more: Any) -> Document:
    """Value of the field `metadata`."""
    return {"_cls": "ImageMetadata", **more, "width": size_hw[1], "height": size_hw[0]}


def group_element(moment: Any, name: Any) -> Document:
    """Place of a sample in a group: the group's id and the slice."""
    return {"_id": moment, "_cls": "Group", "name": name}


def new_sample(dataset: Any, random: float, now: datetime.datetime | None) -> Document:
    """Fields that every sample of a dataset has from its start; `random` is in [0, 1)."""
    return {
        "_dataset_id": dataset_id(dataset), "_media_type": "image", "_rand": random, "tags": [],
        "created_at": now,
    }  # fmt: skip


def dataset_id(dataset: Any) -> Any:
    """Id of a dataset, or of a `stored_dataset`."""
    return dataset._doc.id


def sample_collection(dataset: Any) -> Any:
    """Return the MongoDB collection that holds a dataset's samples.

    Raises:
        AutolabelError: the installed FiftyOne may store them in another way.

    """
    refuse_other_version()
    return database()[dataset._sample_collection_name]


def frame_collection(dataset: Any) -> Any:
    """Return the MongoDB collection that holds the frames of a dataset of videos."""
    return database()[dataset._frame_collection_name]


def stored_dataset(name: str) -> Any | None:
    """Return what writers need of a dataset: its name, id, info, fields and collection, as of now.

    FiftyOne's object takes 50 ms to load, and each load writes when it was. This one goes wherever
    only samples are read and written. None where there is no such dataset.
    """
    found = database().datasets.find_one({"name": name})
    if found is None:
        return None
    return SimpleNamespace(
        name=name,
        info=found["info"],
        fields=[one["name"] for one in found["sample_fields"]],
        _doc=SimpleNamespace(id=found["_id"]),
        _sample_collection_name=found["sample_collection_name"],
    )


def default_slice_of(dataset: Any) -> str:
    """Return the slice of a grouped dataset that the App shows first; "" where there are no groups.

    Asks the database: another process may have made groups of the dataset since it was opened.
    """
    wanted = {"group_field": 1, "default_group_slice": 1}
    found = database().datasets.find_one({"_id": dataset_id(dataset)}, wanted) or {}
    return str(found.get("default_group_slice") or "") if found.get("group_field") else ""


def declare_fields(dataset: Any, sample: Any) -> None:
    """Declare every field that a sample has, with those of its labels.

    FiftyOne writes and reads the whole schema for each field of a sample that is added, and for
    each that is declared on its own: 70 of them take seconds.
    """
    import fiftyone.core.odm as foo

    fields = {
        field: foo.create_implied_field(field, sample[field], dynamic=True)
        for field in sample.field_names
        if sample[field] is not None
    }
    dataset._sample_doc_cls.merge_field_schema(fields, validate=False)
    dataset.reload()


@cache
def refuse_other_version() -> None:
    """Raise AutolabelError for a FiftyOne that may store samples in another way."""
    import fiftyone as fo

    if not fo.__version__.startswith(f"{WRITTEN_FOR}."):
        raise AutolabelError(
            f"fiftyone {fo.__version__} may store samples in another way than {WRITTEN_FOR}, for "
            f"which this is written. Nothing was written; install fiftyone {WRITTEN_FOR}"
        )


def database() -> Any:
    """FiftyOne's database, as pymongo knows it."""
    import fiftyone.core.odm as foo

    return foo.get_db_conn()
