"""Prints what a FiftyOne dataset holds as JSON, for a test that must not import fiftyone itself."""

import hashlib
import json
import sys

from tasks.load_schema import open_dataset

dataset = open_dataset(sys.argv[1])
view = dataset.select_group_slices(_allow_mixed=True) if dataset.media_type == "group" else dataset
rows = []
for sample in view:
    found = sample["detections"].detections if sample["detections"] else []
    rows.append(
        {
            "sequence": sample["sequence_id"],
            "camera": sample["camera"],
            "frame": sample["frame_number"],
            "file": sample.filepath,
            "width": sample.metadata.width if sample.metadata else None,
            "objects": [
                {
                    "id": str(one.id),
                    "label": one.label,
                    "box": [round(value, 6) for value in one.bounding_box],
                    "score": one.confidence,
                    "predicted_iou": one["predicted_iou"],
                    "stability": one["stability"],
                    "model": one["model"],
                    "mask": None
                    if one.mask is None
                    else hashlib.sha256(one.mask.astype("uint8").tobytes()).hexdigest(),
                }
                for one in found
            ],
        }
    )
rows.sort(key=lambda row: (row["sequence"], row["camera"] or "", row["frame"]))
facts = {"media_type": dataset.media_type, "views": dataset.list_saved_views(), "rows": rows}
print(json.dumps(facts))
