"""YOLO segmentation: one text file per frame, one line per instance, one polygon per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sam2_core.mask_geometry import one_polygon, polygons
from tasks.export.masks import PolygonLoss, bitmap, polygon_iou
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, FlatNames, Told


class YoloWriter:
    """`images/SPLIT/`, `labels/SPLIT/`, `data.yaml`; parts and holes are joined by cuts.

    Without splits everything is `train`. Coordinates are fractions of the image's size.
    """

    def __init__(self, sink: Sink, classes: Classes, _told: Told) -> None:
        self._sink, self._classes = sink, classes
        self._loss, self._splits = PolygonLoss(), dict[str, None]()
        self._names = FlatNames()

    def add(self, frame: ExportFrame) -> None:
        """Write a frame; one without labels gets an empty file, which is a background."""
        split = frame.split or "train"
        self._splits[split] = None
        # Trainers replace "/images/" by "/labels/" and look for names in one folder a split.
        name = f"{self._names.of(frame.series)}__{frame.file_stem}"
        self._sink.image(f"images/{split}/{name}{frame.suffix}", frame.image)
        height, width = frame.size_hw
        lines = []
        for instance in frame.instances:
            parts = polygons(bitmap(instance, frame.size_hw))
            fractions = (one_polygon(parts) / (width, height)).round(6)
            self._loss.note(polygon_iou([fractions * (width, height)], instance, frame.size_hw))
            numbers = " ".join(f"{value:g}" for value in fractions.ravel().tolist())
            lines.append(f"{self._classes.number(instance.label)} {numbers}\n")
        self._sink.write(f"labels/{split}/{name}.txt", "".join(lines).encode())

    def close(self) -> Mapping[str, Any]:
        """Write `data.yaml`."""
        train = "train" if "train" in self._splits else next(iter(self._splits), "train")
        # No `path`: trainers then take the folder of this file, and for "." the one they run in.
        lines = [f"train: images/{train}\n"]
        lines += [f"val: images/{'val' if 'val' in self._splits else train}\n"]
        lines += ["test: images/test\n"] if "test" in self._splits else []
        names = self._classes.names
        lines += ["names:\n"]
        lines += [f"  {number}: {json.dumps(name)}\n" for number, name in enumerate(names)]
        self._sink.write("data.yaml", "".join(lines).encode())
        facts = {"validates_on_training": "val" not in self._splits}
        return {**facts, **self._loss.facts(), **self._names.facts()}
