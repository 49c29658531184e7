"""Annotations for trainers: COCO's json, YOLO's text files, and the tables of T4 and nuScenes.

COCO has run lengths or polygons, YOLO polygons. T4 has one dataset per sequence, with `object_ann`
as the labels. There a mask's `size` is (height, width) and its `counts` the base64 of COCO's
string: so it is in T4's sample data, and so t4-devkit decodes it, though its documentation calls
the two width and height.
"""

import base64
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from sam2_core.mask_geometry import Bitmap, Points, mask_of, one_polygon, polygons
from sam2_core.types import AutolabelError
from tasks.export.types import (
    ExportFrame,
    FlatNames,
    Instance,
    Lines,
    Writer,
    bitmap,
    rle_dict,
    tight_box,
)
from tasks.frames.identity import handed_on
from tasks.types import FrameRef


def polygon_iou(parts: Sequence[Points], instance: Instance, size_hw: tuple[int, int]) -> float:
    """IoU of polygons, rasterised as COCO's tools do, with the mask that they stand for."""
    # Parts lie apart: as one polygon they have the same pixels, in a hundredth of the time.
    (drawn,) = coco_mask.frPyObjects([one_polygon(parts).ravel().tolist()], *size_hw)
    return float(coco_mask.iou([drawn], [rle_dict(instance, size_hw)], [0])[0][0])


def filled_iou(polygon: Points, mask: Bitmap) -> float:
    """IoU of a polygon, filled by OpenCV as Ultralytics does, with the mask that it stands for."""
    import cv2

    corners = polygon.astype(np.float32).astype(np.int32)
    (left, top), (right, bottom) = corners.min(0), corners.max(0) + 1
    crop = mask[top:bottom, left:right]
    drawn = cv2.fillPoly(np.zeros(crop.shape, np.uint8), [corners - (left, top)], [1])
    both = int((crop & drawn).sum())
    return both / (int(crop.sum()) + int(drawn.sum()) - both)


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
            "timestamp_ns": frame.timestamp_ns, "frame_key": frame.key,
            "frame_uri": handed_on(frame.uri), "model": frame.model,
            **({"confirmed_empty": True} if frame.confirmed_empty else {}),
        })  # fmt: skip
        for instance in frame.instances:
            ids = {"id": annotations.count + 1, "image_id": images.count}
            annotations.add(ids | self._annotation(instance, frame.size_hw))

    def _annotation(self, instance: Instance, size_hw: tuple[int, int]) -> dict[str, Any]:
        segmentation: Any = {"size": list(size_hw), "counts": instance.rle.decode("ascii")}
        if self.as_polygons:
            parts = polygons(mask_of(instance.rle, size_hw))
            self._loss.note(polygon_iou(parts, instance, size_hw))
            segmentation = [part.ravel().tolist() for part in parts]
        return {
            "category_id": self.classes.number(instance.label) + 1, "iscrowd": 0,
            "segmentation": segmentation, "area": instance.area_px,
            "bbox": list(tight_box(instance, size_hw)), "score": round(instance.score, 6),
            **instance.source,
            **({} if instance.track_id is None else {"track_id": instance.track_id}),
            "attributes": {
                "box_xyxy_px": [round(side, 3) for side in instance.box_xyxy_px],
                "risk": round(instance.risk, 6), "predicted_iou": round(instance.predicted_iou, 6),
                "decision": instance.decision, **instance.review,
            },
        }  # fmt: skip

    def close(self) -> Mapping[str, Any]:
        """Put the files together."""
        categories = [
            {"id": number, "name": name} for number, name in enumerate(self.classes.names, 1)
        ]
        for name in [split for split in self.splits if not split.endswith("/annotations")]:
            ending = f"_{name}" if name else ""
            with self.sink.open(f"annotations/instances{ending}.json") as file:
                file.write('{"info": {"description": "labels of sam2-autolabel"},\n"categories": ')
                file.write(f'{json.dumps(categories)},\n"images": ')
                self.splits[name].write_to(file)
                file.write(',\n"annotations": ')
                self.splits[f"{name}/annotations"].write_to(file)
                file.write("}\n")
        return self._loss.facts()


VALIDATION = ("val", "valid", "validation")


def refuse_other_splits(splits: Iterable[str]) -> None:
    """Refuse splits that Ultralytics has no place for, or of which none is for validation.

    Raises:
        AutolabelError: it says which there may be.

    """
    names = [("val" if name in VALIDATION else name) for name in splits]
    if names and sorted(names) not in (["train", "val"], ["test", "train", "val"]):
        raise AutolabelError(
            f"yolo has a split train, one for validation (val, valid or validation), and test if "
            f"need be, not {', '.join(splits)}: name them so, such as train=0.8,val=0.2"
        )


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
            mask = bitmap(instance, frame.size_hw)
            parts = polygons(mask_of(instance.rle, frame.size_hw))
            fractions = (one_polygon(parts) / (width, height)).round(6)
            self._loss.note(filled_iou(fractions * (width, height), mask))
            numbers = " ".join(f"{value:g}" for value in fractions.ravel().tolist())
            lines.append(f"{self.classes.number(instance.label)} {numbers}\n")
        self.sink.write(f"labels/{name}.txt", "".join(lines).encode())

    def close(self) -> Mapping[str, Any]:
        """Write `data.yaml`."""
        train = "train" if "train" in self._counts else next(iter(self._counts), "train")
        validation = next((name for name in VALIDATION if name in self._counts), train)
        # No `path`: trainers then take the folder of this file, and for "." the one they run in.
        lines = [f"train: images/{train}\n", f"val: images/{validation}\n"]
        lines += ["test: images/test\n"] if "test" in self._counts else []
        lines += ["names:\n"]
        lines += [f"  {n}: {json.dumps(name)}\n" for n, name in enumerate(self.classes.names)]
        self.sink.write("data.yaml", "".join(lines).encode())
        facts = {"validates_on_training": train == validation}
        return {**facts, **self._loss.facts(), **self._names.facts()}


_STEP_US = 100_000  # between frames without a time
Row = dict[str, Any]


def token(*identity: object) -> str:
    """Token of a row: 32 hexadecimal digits, the same in every export of the same labels."""
    return hashlib.sha256("\0".join(map(str, identity)).encode()).hexdigest()[:32]


@dataclass
class _Tables:
    """One sequence: the long table in a file, the others, one row per frame or track, in memory."""

    sequence_id: str
    folder: str
    annotations: Lines
    samples: dict[str, int] = field(default_factory=dict)  # time in us by token
    sample_data: list[Row] = field(default_factory=list)
    instances: dict[str, Row] = field(default_factory=dict)
    cameras: dict[str, str] = field(default_factory=dict)


@dataclass
class T4Writer(Writer):
    """`SEQUENCE/annotation/*.json` and `SEQUENCE/data/CAMERA/000000.jpg`."""

    _tables: _Tables | None = None
    _timeless: int = 0

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        tables, channel = self._tables, (*frame.folders, "CAM_FRONT")[1]
        if tables is None or tables.sequence_id != frame.sequence_id:
            self._end()
            tables = _Tables(frame.sequence_id, frame.folders[0], self.sink.lines())
            self._tables = tables
        self._timeless += frame.timestamp_ns is None
        moment, time_us = frame.moment, _time_us(frame)
        sample = token("sample", frame.sequence_id, moment.camera, moment.index)
        tables.samples[sample] = _time_us(moment)
        sensor = tables.cameras.setdefault(channel, token("sensor", channel))
        data = token("sample_data", frame.sequence_id, channel, frame.index)
        name = f"data/{channel}/{frame.index:06d}{frame.usual_suffix}"
        self.sink.image(f"{tables.folder}/{name}", frame.image)
        height, width = frame.size_hw
        tables.sample_data.append({
            "token": data, "sample_token": sample, "filename": name,
            "ego_pose_token": token("ego_pose", frame.sequence_id, time_us),
            "calibrated_sensor_token": token("calibrated", sensor),
            "fileformat": frame.usual_suffix.lstrip("."), "width": width, "height": height,
            "timestamp": time_us, "is_key_frame": True, "next": "", "prev": "",
            "is_valid": True,
        })  # fmt: skip
        for number, instance in enumerate(frame.instances):
            self.classes.number(instance.label)
            _annotate(tables, frame, instance, data, token("object_ann", data, number))

    def _end(self) -> None:
        tables = self._tables
        if tables is None:
            return
        folder = f"{tables.folder}/annotation"
        for name, rows in _small_tables(tables, self.classes.names).items():
            self.sink.write(f"{folder}/{name}.json", json.dumps(rows, indent=1).encode())
        with self.sink.open(f"{folder}/object_ann.json") as file:
            tables.annotations.write_to(file)
            file.write("\n")

    def close(self) -> Mapping[str, Any]:
        """Write the last sequence's tables."""
        self._end()
        return {"frames_without_time": self._timeless, "calibration": "none: identity"}


def _time_us(frame: ExportFrame | FrameRef) -> int:
    if frame.timestamp_ns is None:
        return frame.index * _STEP_US
    return frame.timestamp_ns // 1000


def _annotate(
    tables: _Tables, frame: ExportFrame, instance: Instance, data: str, name: str
) -> None:
    """Write a label: `name` is its token, `data` that of its picture."""
    category = token("category", instance.label)
    who: tuple[object, ...] = (frame.series, instance.label, instance.track_id)
    track = "" if instance.track_id is None else instance.track_id
    instance_token = token("instance", *(who if track != "" else (name,)))
    row = tables.instances.setdefault(instance_token, {
        "token": instance_token, "category_token": category, "nbr_annotations": 0,
        "instance_name": f"{frame.series}::{track}",
        "first_annotation_token": name, "last_annotation_token": name,
    })  # fmt: skip
    row["nbr_annotations"] += 1
    row["last_annotation_token"] = name
    x, y, width, height = tight_box(instance, frame.size_hw)
    by_machine = not instance.decision
    metadata = {"name": frame.model, "score": instance.score, "uncertainty": instance.risk}
    tables.annotations.add({
        "token": name, "sample_data_token": data, "instance_token": instance_token,
        "category_token": category, "attribute_tokens": [],
        "bbox": [int(x), int(y), int(x + width), int(y + height)],
        "mask": {
            "size": list(frame.size_hw), "counts": base64.b64encode(instance.rle).decode("ascii"),
        },
        "automatic_annotation": by_machine,
        "autolabel_metadata": [metadata] if by_machine else None,
    })  # fmt: skip


def _small_tables(tables: _Tables, classes: list[str]) -> dict[str, list[Row]]:
    """Every table but `object_ann`; those that a camera's labels know nothing of are empty."""
    samples = sorted(tables.samples, key=lambda sample: (tables.samples[sample], sample))
    scene, log = token("scene", tables.sequence_id), token("log", tables.sequence_id)
    for channel in tables.cameras:
        rows = [row for row in tables.sample_data if row["filename"].split("/")[1] == channel]
        _chain(sorted(rows, key=lambda row: row["timestamp"]))
    sample_rows: list[Row] = [
        {
            "token": name, "timestamp": tables.samples[name], "scene_token": scene,
            "next": "", "prev": "",
        }
        for name in samples
    ]  # fmt: skip
    _chain(sample_rows)
    still = {"translation": [0.0, 0.0, 0.0], "rotation": [1.0, 0.0, 0.0, 0.0]}
    empty = ("attribute", "sample_annotation", "surface_ann", "visibility")
    return {
        **{name: [] for name in empty},
        "map": [{
            "token": token("map", tables.sequence_id), "log_tokens": [log],
            "category": "semantic_prior", "filename": "",
        }],
        "category": [
            {"token": token("category", name), "name": name, "description": ""} for name in classes
        ],
        "instance": list(tables.instances.values()),
        "sample": sample_rows,
        "sample_data": tables.sample_data,
        "sensor": [
            {"token": name, "channel": channel, "modality": "camera"}
            for channel, name in tables.cameras.items()
        ],
        "calibrated_sensor": [
            {
                "token": token("calibrated", name), "sensor_token": name, **still,
                "camera_intrinsic": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
                "camera_distortion": [0.0] * 5,
            }
            for name in tables.cameras.values()
        ],
        "ego_pose": [
            {"token": token("ego_pose", tables.sequence_id, time), "timestamp": time, **still}
            for time in sorted({row["timestamp"] for row in tables.sample_data})
        ],
        "scene": [{
            "token": scene, "name": tables.sequence_id, "description": "", "log_token": log,
            "nbr_samples": len(samples), "first_sample_token": samples[0],
            "last_sample_token": samples[-1],
        }],
        "log": [{
            "token": log, "logfile": "", "vehicle": "", "data_captured": "", "location": "",
        }],
    }  # fmt: skip


def _chain(rows: list[Row]) -> None:
    for before, after in itertools.pairwise(rows):
        before["next"], after["prev"] = after["token"], before["token"]
