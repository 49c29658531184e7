"""COCO instances json: masks as run lengths, without loss, or as polygons."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sam2_core.mask_geometry import polygons
from tasks.export.masks import PolygonLoss, bitmap, polygon_iou, tight_box
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, Instance, Told


class _Split:
    """The two long lists of one split's file."""

    def __init__(self, sink: Sink) -> None:
        self.images, self.annotations = sink.lines(), sink.lines()
        self.image_count = self.annotation_count = 0


class CocoWriter:
    """`annotations/instances[_SPLIT].json` and `images/`.

    Args:
        sink: where to.
        classes: category ids are their numbers plus one.
        told: not needed: COCO has a place for every label.
        as_polygons: outlines instead of run lengths; holes are joined to their outline by a cut.

    """

    def __init__(
        self, sink: Sink, classes: Classes, _told: Told, *, as_polygons: bool = False
    ) -> None:
        self._sink, self._classes, self._as_polygons = sink, classes, as_polygons
        self._splits = defaultdict[str, _Split](lambda: _Split(sink))
        self._loss = PolygonLoss()

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        split = self._splits[frame.split]
        split.image_count += 1
        height, width = frame.size_hw
        path = f"{frame.name}{frame.suffix}"
        self._sink.image(f"images/{path}", frame.image)
        image = {
            "id": split.image_count, "file_name": path, "width": width, "height": height,
            "sequence_id": frame.sequence_id, "camera": frame.camera, "frame_id": frame.index,
            "timestamp_ns": frame.timestamp_ns, "frame_uri": frame.uri, "model": frame.model,
        }  # fmt: skip
        split.images.add(image)
        for instance in frame.instances:
            split.annotation_count += 1
            found = self._annotation(instance, frame.size_hw)
            ids = {"id": split.annotation_count, "image_id": split.image_count}
            split.annotations.add(ids | found)

    def _annotation(self, instance: Instance, size_hw: tuple[int, int]) -> dict[str, Any]:
        segmentation: Any = {"size": list(size_hw), "counts": instance.rle.decode("ascii")}
        if self._as_polygons:
            parts = polygons(bitmap(instance, size_hw))
            self._loss.note(polygon_iou(parts, instance, size_hw))
            segmentation = [part.ravel().tolist() for part in parts]
        return {
            "category_id": self._classes.number(instance.label) + 1, "iscrowd": 0,
            "segmentation": segmentation, "area": instance.area_px,
            "bbox": list(tight_box(instance, size_hw)), "score": round(instance.score, 6),
            **({"source": "interpolated"} if instance.interpolated else {}),
            **({} if instance.track_id is None else {"track_id": instance.track_id}),
            "attributes": {
                "box_xyxy_px": [round(side, 3) for side in instance.box_xyxy_px],
                "risk": round(instance.risk, 6), "predicted_iou": round(instance.predicted_iou, 6),
                "decision": instance.decision,
            },
        }  # fmt: skip

    def close(self) -> Mapping[str, Any]:
        """Put the files together."""
        names = self._classes.names
        categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
        for name, split in self._splits.items():
            ending = f"_{name}" if name else ""
            with self._sink.open(f"annotations/instances{ending}.json") as file:
                file.write('{"info": {"description": "labels of sam2-autolabel"},\n"categories": ')
                file.write(json.dumps(categories))
                file.write(',\n"images": ')
                split.images.write_to(file)
                file.write(',\n"annotations": ')
                split.annotations.write_to(file)
                file.write("}\n")
        return self._loss.facts() if self._as_polygons else {}
