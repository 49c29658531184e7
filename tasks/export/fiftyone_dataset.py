"""A dataset as FiftyOne exports it, in the form of its early versions, which is one stream.

`samples.json` has a sample for each frame, whose labels hold their masks. FiftyOne sees from
`metadata.json` that no version is named, and reads it with `Dataset.from_dir`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.export.masks import tight_crops
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, Instance, Told
from tasks.masks.crops import npy_zlib

FIELD = "detections"


class FiftyOneWriter:
    """`metadata.json`, `samples.json` and `data/`."""

    def __init__(self, sink: Sink, classes: Classes, _told: Told) -> None:
        self._sink, self._classes = sink, classes
        self._samples = sink.lines()

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        path = f"data/{frame.name}{frame.suffix}"
        if not self._sink.image(path, frame.image) and frame.image is not None:
            path = str(frame.image)
        height, width = frame.size_hw
        detections = [
            self._detection(number, frame, *crop) for number, crop in enumerate(tight_crops(frame))
        ]
        sample = {
            "filepath": path, "tags": [frame.split] if frame.split else [],
            "metadata": {"_cls": "ImageMetadata", "width": width, "height": height},
            "_media_type": "image", "sequence_id": frame.sequence_id, "camera": frame.camera,
            "frame_number": frame.index, "timestamp_ns": frame.timestamp_ns,
            "frame_uri": frame.uri, "model": frame.model,
            FIELD: {"_cls": "Detections", "detections": detections},
        }  # fmt: skip
        self._samples.add(sample)

    def _detection(
        self, number: int, frame: ExportFrame, one: Instance,
        box_xyxy_px: tuple[int, int, int, int], mask: npt.NDArray[np.bool_],
    ) -> dict[str, Any]:  # fmt: skip
        self._classes.number(one.label)
        name = f"{frame.series}/{frame.index}/{number}"
        left, top, right, bottom = box_xyxy_px
        height, width = frame.size_hw
        box = [left / width, top / height, (right - left) / width, (bottom - top) / height]
        data = base64.b64encode(npy_zlib(mask)).decode("ascii")
        return {
            "_id": {"$oid": hashlib.sha256(name.encode()).hexdigest()[:24]}, "_cls": "Detection",
            "tags": [], "attributes": {}, "label": one.label, "bounding_box": box,
            "mask": {"$binary": {"base64": data, "subType": "00"}}, "confidence": one.score,
            "index": one.track_id, "risk": one.risk, "predicted_iou": one.predicted_iou,
            "decision": one.decision,
        }  # fmt: skip

    def close(self) -> Mapping[str, Any]:
        """Write what belongs around the samples."""
        metadata = {
            "name": "labels", "media_type": "image", "default_classes": self._classes.names,
            "info": {"description": "labels of sam2-autolabel"},
        }  # fmt: skip
        self._sink.write("metadata.json", json.dumps(metadata, indent=1).encode())
        with self._sink.open("samples.json") as file:
            file.write('{"samples": ')
            self._samples.write_to(file)
            file.write("}\n")
        return {"dataset_type": "fiftyone.types.FiftyOneDataset"}
