"""Pictures of numbers: who owns a pixel, and of which class it is; also as Cityscapes has them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.export.masks import COVERED, owners, png
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, FlatNames, Told

OVERLAP = "pixel owned by a mask of a higher score"
# Ids of Cityscapes, and whether its instances are told apart.
CITYSCAPES: Mapping[str, tuple[int, bool]] = {
    "road": (7, False), "sidewalk": (8, False), "building": (11, False), "wall": (12, False),
    "fence": (13, False), "pole": (17, False), "traffic light": (19, False),
    "traffic sign": (20, False), "stop sign": (20, False), "vegetation": (21, False),
    "terrain": (22, False), "sky": (23, False), "person": (24, True), "pedestrian": (24, True),
    "rider": (25, True), "car": (26, True), "truck": (27, True), "bus": (28, True),
    "caravan": (29, True), "trailer": (30, True), "train": (31, True), "motorcycle": (32, True),
    "motorbike": (32, True), "bicycle": (33, True),
}  # fmt: skip


def _values(owner: npt.NDArray[np.int32], numbers: list[int], dtype: type) -> Any:
    """Give each pixel the number of the instance that owns it, 0 for none."""
    return np.array([*numbers, 0], dtype)[owner]  # -1 is the last one


class PngWriter:
    """`instances/` uint16: 1 for a frame's first label, and so on; `semantic/` uint8: class + 1.

    `labels/` has what each number is. Where masks overlap the higher score owns the pixel.
    """

    def __init__(self, sink: Sink, classes: Classes, told: Told) -> None:
        self._sink, self._classes, self._told = sink, classes, told

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        self._sink.image(f"images/{frame.name}{frame.suffix}", frame.image)
        count = len(frame.instances)
        classes = [self._classes.number(one.label) + 1 for one in frame.instances]
        if count >= 1 << 16 or max(classes, default=0) >= 1 << 8:
            self._told.no_place("more than 65,535 labels in a frame, or 255 classes", count)
            return
        owner, _ = owners(frame)
        instances = _values(owner, list(range(1, count + 1)), np.uint16)
        self._sink.write(f"instances/{frame.name}.png", png(instances))
        self._sink.write(f"semantic/{frame.name}.png", png(_values(owner, classes, np.uint8)))
        rows = [
            {
                "number": number, "label": one.label, "class": class_, "score": one.score,
                "track_id": one.track_id, "risk": one.risk, "area_px": one.area_px,
            }
            for number, (one, class_) in enumerate(zip(frame.instances, classes, strict=True), 1)
        ]  # fmt: skip
        self._sink.write(f"labels/{frame.name}.json", json.dumps(rows).encode())

    def close(self) -> Mapping[str, Any]:
        """Write the class numbers."""
        names = dict(enumerate(self._classes.names, 1))
        self._sink.write("classes.json", json.dumps({0: "nothing", **names}, indent=1).encode())
        return {"overlaps": "the higher score owns the pixel"}


class CityscapesWriter:
    """`leftImg8bit/SPLIT/CITY/` and `gtFine/SPLIT/CITY/` with `_instanceIds` and `_labelIds`.

    The city is the sequence and camera, without underscores. Classes that Cityscapes does not have
    are left out; a class map brings them in.
    """

    def __init__(self, sink: Sink, _classes: Classes, told: Told) -> None:
        self._sink, self._told = sink, told
        self._cities = FlatNames(lambda one: re.sub(r"[^A-Za-z0-9-]", "", one) or "city")

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        city = self._cities.of(frame.series)
        split = frame.split or "train"
        name = f"{split}/{city}/{city}_000000_{frame.index:06d}"
        self._sink.image(f"leftImg8bit/{name}_leftImg8bit{frame.suffix}", frame.image)
        ids: list[int] = []
        full: list[int] = []
        counts: dict[int, int] = {}
        for one in frame.instances:
            number, told_apart = CITYSCAPES.get(one.label.lower(), (0, False))
            if not number:
                self._told.no_place(f"class {one.label} is none of Cityscapes'")
            ids.append(number)
            full.append(number * 1000 + counts.get(number, 0) if told_apart else number)
            counts[number] = counts.get(number, 0) + 1
        if max(counts.values(), default=0) > 1000:
            raise ValueError(f"{frame.uri}: more than 1,000 labels of one class")
        owner, covered = owners(frame, np.flatnonzero(ids).tolist())
        self._told.no_place(COVERED, covered)
        self._sink.write(
            f"gtFine/{name}_gtFine_instanceIds.png", png(_values(owner, full, np.uint16))
        )
        self._sink.write(f"gtFine/{name}_gtFine_labelIds.png", png(_values(owner, ids, np.uint8)))

    def close(self) -> Mapping[str, Any]:
        """Say which city is which sequence."""
        return {"cities": self._cities.facts()["sequence_names"]}
