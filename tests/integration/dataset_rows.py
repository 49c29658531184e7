"""What a FiftyOne dataset holds, as plain values; as a program it prints them as JSON."""

import hashlib
import json
import sys
from typing import Any


def _object(one: Any) -> dict[str, Any]:
    mask = None if one.mask is None else one.mask.astype("uint8").tobytes()
    return {
        "id": str(one.id),
        "label": one.label,
        "box": [round(value, 6) for value in one.bounding_box],
        "score": one.confidence,
        "predicted_iou": one["predicted_iou"],
        "stability": one["stability"],
        "model": one["model"],
        "mask": None if mask is None else hashlib.sha256(mask).hexdigest(),
    }


def held(name: str) -> dict[str, Any]:
    """Media type, and one row per sample in order."""
    from tasks.dataset.schema import open_dataset

    dataset = open_dataset(name)
    grouped = dataset.media_type == "group"
    view = dataset.select_group_slices(_allow_mixed=True) if grouped else dataset
    rows = [
        {
            "sequence": sample["sequence_id"],
            "camera": sample["camera"],
            "frame": sample["frame_number"],
            "file": sample.filepath,
            "objects": [_object(one) for one in getattr(sample["detections"], "detections", [])],
        }
        for sample in view
    ]
    rows.sort(key=lambda row: (row["sequence"], row["camera"] or "", row["frame"]))
    return {"media_type": dataset.media_type, "rows": rows}


def all_documents() -> list[str]:
    """Every document of the database that FiftyOne uses, as text."""
    import fiftyone.core.odm as foo

    client = foo.get_db_conn().client
    return [
        str(document)
        for name in {*client.list_database_names()} - {"admin", "config", "local"}
        for collection in client[name].list_collection_names()
        for document in client[name][collection].find()
    ]


if __name__ == "__main__":
    print(json.dumps([held(name) for name in sys.argv[1:]]))
