"""COCO's instances json, with run lengths or polygons, and YOLO's text files of polygons."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pycocotools import mask as coco_mask

from sam2_core.mask_geometry import Points, one_polygon, polygons
from tasks.export.types import (
    ExportFrame,
    FlatNames,
    Instance,
    Writer,
    bitmap,
    rle_dict,
    tight_box,
)


def polygon_iou(parts: Sequence[Points], instance: Instance, size_hw: tuple[int, int]) -> float:
    """IoU of polygons, rasterised as COCO's tools do, with the mask that they stand for."""
    # Parts lie apart: as one polygon they have the same pixels, in a hundredth of the time.
    (drawn,) = coco_mask.frPyObjects([one_polygon(parts).ravel().tolist()], *size_hw)
    return float(coco_mask.iou([drawn], [rle_dict(instance, size_hw)], [0])[0][0])


class PolygonLoss:
    """Mean and worst IoU of polygons with the masks that they stand for."""

    def __init__(self) -> None:
        self._count, self._sum, self._worst = 0, 0.0, 1.0

    def note(self, iou: float) -> None:
        """Count one mask."""
        self._count += 1
        self._sum += iou
        self._worst = min(self._worst, iou)

    def facts(self) -> dict[str, Any]:
        """Return the figures for the report."""
        mean = self._sum / max(self._count, 1)
        figures = {"polygon_iou_mean": round(mean, 6), "polygon_iou_worst": round(self._worst, 6)}
        return figures if self._count else {}


@dataclass
class CocoWriter(Writer):
    """`annotations/instances[_SPLIT].json` and `images/`; category ids are class numbers plus one.

    Attributes:
        as_polygons: outlines instead of run lengths; holes are joined to their outline by a cut.

    """

    as_polygons: bool = False
    _loss: PolygonLoss = field(default_factory=PolygonLoss)

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        images, annotations = self.splits[frame.split], self.splits[f"{frame.split}/annotations"]
        height, width = frame.size_hw
        self.sink.image(f"images/{frame.file_name}", frame.image)
        images.add({
            "id": images.count + 1, "file_name": frame.file_name, "width": width, "height": height,
            "sequence_id": frame.sequence_id, "camera": frame.camera, "frame_id": frame.index,
            "timestamp_ns": frame.timestamp_ns, "frame_uri": frame.uri, "model": frame.model,
        })  # fmt: skip
        for instance in frame.instances:
            ids = {"id": annotations.count + 1, "image_id": images.count}
            annotations.add(ids | self._annotation(instance, frame.size_hw))

    def _annotation(self, instance: Instance, size_hw: tuple[int, int]) -> dict[str, Any]:
        segmentation: Any = {"size": list(size_hw), "counts": instance.rle.decode("ascii")}
        if self.as_polygons:
            parts = polygons(bitmap(instance, size_hw))
            self._loss.note(polygon_iou(parts, instance, size_hw))
            segmentation = [part.ravel().tolist() for part in parts]
        return {
            "category_id": self.classes.number(instance.label) + 1, "iscrowd": 0,
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
        categories = [
            {"id": number, "name": name} for number, name in enumerate(self.classes.names, 1)
        ]
        for name in [one for one in self.splits if not one.endswith("/annotations")]:
            ending = f"_{name}" if name else ""
            with self.sink.open(f"annotations/instances{ending}.json") as file:
                file.write('{"info": {"description": "labels of sam2-autolabel"},\n"categories": ')
                file.write(f'{json.dumps(categories)},\n"images": ')
                self.splits[name].write_to(file)
                file.write(',\n"annotations": ')
                self.splits[f"{name}/annotations"].write_to(file)
                file.write("}\n")
        return self._loss.facts()


@dataclass
class YoloWriter(Writer):
    """`images/SPLIT/`, `labels/SPLIT/`, `data.yaml`: a line, of one polygon, for each instance.

    Without splits everything is `train`. Coordinates are fractions of the image's size; parts and
    holes are joined by cuts.
    """

    _loss: PolygonLoss = field(default_factory=PolygonLoss)
    _counts: Counter[str] = field(default_factory=Counter)  # of pictures, by split
    _names: FlatNames = field(default_factory=FlatNames)

    def add(self, frame: ExportFrame) -> None:
        """Write a frame; one without labels gets an empty file, which is a background."""
        split = frame.split or "train"
        self._counts[split] += 1
        # Trainers replace "/images/" by "/labels/" and look for names in one folder a split.
        name = f"{split}/{self._names.of(frame.series)}__{frame.file_stem}"
        self.sink.image(f"images/{name}{frame.suffix}", frame.image)
        height, width = frame.size_hw
        lines = []
        for instance in frame.instances:
            parts = polygons(bitmap(instance, frame.size_hw))
            fractions = (one_polygon(parts) / (width, height)).round(6)
            self._loss.note(polygon_iou([fractions * (width, height)], instance, frame.size_hw))
            numbers = " ".join(f"{value:g}" for value in fractions.ravel().tolist())
            lines.append(f"{self.classes.number(instance.label)} {numbers}\n")
        self.sink.write(f"labels/{name}.txt", "".join(lines).encode())

    def close(self) -> Mapping[str, Any]:
        """Write `data.yaml`."""
        train = "train" if "train" in self._counts else next(iter(self._counts), "train")
        validates = "val" in self._counts
        # No `path`: trainers then take the folder of this file, and for "." the one they run in.
        lines = [f"train: images/{train}\n", f"val: images/{'val' if validates else train}\n"]
        lines += ["test: images/test\n"] if "test" in self._counts else []
        lines += ["names:\n"]
        lines += [f"  {n}: {json.dumps(name)}\n" for n, name in enumerate(self.classes.names)]
        self.sink.write("data.yaml", "".join(lines).encode())
        facts = {"validates_on_training": not validates}
        return {**facts, **self._loss.facts(), **self._names.facts()}
