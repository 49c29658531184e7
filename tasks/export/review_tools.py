"""What CVAT, Label Studio and FiftyOne read: masks pixel by pixel, scores, risks, decisions."""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import numpy.typing as npt

from sam2_core.types import AutolabelError
from tasks.export.types import ExportFrame, Instance, Writer, bitmap, tight_crops
from tasks.frames.identity import handed_on, part_of
from tasks.masks.crops import npy_zlib
from tasks.store import storage

_ATTRIBUTES = ("score", "risk", "track_id", "decision", "source")
_HEAD = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta>
    <task>
      <name>{name}</name>
      <size>{size}</size>
      <mode>annotation</mode>
      <labels>
{labels}      </labels>
    </task>
  </meta>
"""
_ATTRIBUTE = (
    "<attribute><name>{}</name><mutable>True</mutable><input_type>text</input_type>"
    "<default_value></default_value><values></values></attribute>"
)
# Bits of run lengths of Label Studio, of which each run takes the least that it fits in.
_SIZES = (3, 4, 8, 16)
_CHANNELS, _WORD = 4, 8
_SERVED = "/data/local-files/?d=images/"
FIELD = "detections"


class CvatWriter(Writer):
    """`annotations[_SPLIT].xml` and `images/`: CVAT's XML 1.1 for images.

    Masks are run lengths of their box, row by row, without loss.
    """

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        split, (height, width) = self.splits[frame.split], frame.size_hw
        self.sink.image(f"images/{frame.file_name}", frame.image)
        split.write(
            f'  <image id="{split.count}" name={quoteattr(frame.file_name)} '
            f'width="{width}" height="{height}">\n'
        )
        split.count += 1
        for instance, (left, top, _, _), mask in tight_crops(frame):
            self.classes.number(instance.label)
            split.write(_cvat_mask(instance, left, top, mask.view(np.uint8)))
        split.write("  </image>\n")

    def close(self) -> Mapping[str, Any]:
        """Put the files together: labels come before the images that have them."""
        attributes = "".join(map(_ATTRIBUTE.format, _ATTRIBUTES))
        labels = "".join(
            f"        <label><name>{escape(name)}</name><type>mask</type>"
            f"<attributes>{attributes}</attributes></label>\n"
            for name in self.classes.names
        )
        for name, images in self.splits.items():
            ending = f"_{name}" if name else ""
            with self.sink.open(f"annotations{ending}.xml") as file:
                task = escape(name or "labels")
                file.write(_HEAD.format(name=task, size=images.count, labels=labels))
                images.copy_to(file)
                file.write("</annotations>\n")
        return {}


def _cvat_mask(instance: Instance, left: int, top: int, crop: npt.NDArray[np.uint8]) -> str:
    lengths = ", ".join(map(str, run_lengths(crop).tolist()))
    values = (
        f"{instance.score:.6f}", f"{instance.risk:.6f}",
        "" if instance.track_id is None else str(instance.track_id),
        instance.decision, instance.source.get("source", ""),
    )  # fmt: skip
    told = "".join(
        f'<attribute name="{name}">{escape(value)}</attribute>'
        for name, value in zip(_ATTRIBUTES, values, strict=True)
    )
    origin = "manual" if instance.decision else "auto"
    return (
        f'    <mask label={quoteattr(instance.label)} source="{origin}" occluded="0" '
        f'rle="{lengths}" '
        f'left="{left}" top="{top}" width="{crop.shape[1]}" height="{crop.shape[0]}" z_order="0">'
        f"{told}</mask>\n"
    )


def run_lengths(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Lengths of the runs of 0 and 1 in turn, row by row, beginning with those of 0."""
    flat = pixels.ravel()
    borders = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.concatenate([[0], borders, [flat.size]]))
    return np.concatenate([[0], lengths]) if flat[0] else lengths


class LabelStudioWriter(Writer):
    """`tasks[_SPLIT].json`, `labeling_config.xml` and `images/`.

    Tasks have brush masks as predictions, or as annotations where people decided.
    """

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        self.sink.image(f"images/{frame.file_name}", frame.image)
        results = [
            self._result(instance, number, frame) for number, instance in enumerate(frame.instances)
        ]
        by_people = [result for result in results if result["meta"]["decision"]]
        by_model = [result for result in results if not result["meta"]["decision"]]
        task: dict[str, Any] = {
            "data": {
                "image": f"{_SERVED}{quote(frame.file_name)}", "sequence_id": frame.sequence_id,
                "camera": frame.camera, "frame_id": frame.index,
                "timestamp_ns": frame.timestamp_ns,
            },
            "predictions": [{
                "model_version": frame.model, "score": min(result["score"] for result in by_model),
                "result": by_model,
            }] if by_model else [],
            # An annotation without a label says that somebody has looked and seen nothing.
            "annotations": [{"result": by_people}] if by_people or frame.confirmed_empty else [],
        }  # fmt: skip
        self.splits[frame.split].add(task)

    def _result(self, instance: Instance, number: int, frame: ExportFrame) -> dict[str, Any]:
        self.classes.number(instance.label)
        height, width = frame.size_hw
        name = f"{frame.series}/{frame.index}/{number}"
        return {
            "id": hashlib.sha256(name.encode()).hexdigest()[:10], "type": "brushlabels",
            "from_name": "mask", "to_name": "image", "original_width": width,
            "original_height": height, "image_rotation": 0, "score": round(instance.score, 6),
            "value": {
                "format": "rle", "rle": list(packed(bitmap(instance, frame.size_hw))),
                "brushlabels": [instance.label],
            },
            "meta": {
                "risk": round(instance.risk, 6), "track_id": instance.track_id,
                "decision": instance.decision,
                **instance.source,
            },
        }  # fmt: skip

    def close(self) -> Mapping[str, Any]:
        """Put the files together."""
        labels = "".join(f"    <Label value={quoteattr(name)}/>\n" for name in self.classes.names)
        config = (
            '<View>\n  <Image name="image" value="$image" zoom="true"/>\n'
            f'  <BrushLabels name="mask" toName="image">\n{labels}  </BrushLabels>\n</View>\n'
        )
        self.sink.write("labeling_config.xml", config.encode())
        for name, tasks in self.splits.items():
            with self.sink.open(f"tasks{f'_{name}' if name else ''}.json") as file:
                tasks.write_to(file)
                file.write("\n")
        return {}


def packed(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Pack a mask, uint8 (H, W) of 0 and 1, as Label Studio unpacks it.

    An RGBA picture packed bit by bit (thi.ng/rle-pack): 32 bits of length, 5 of the word's size,
    four times 4 of the sizes of run lengths, then runs.
    """
    lengths = run_lengths(pixels) * _CHANNELS
    values = np.arange(len(lengths)) % 2 * 255
    most = 1 << _SIZES[-1]
    parts = np.maximum(-(-lengths // most), (lengths > 0).astype(np.int64))
    values, longer = np.repeat(values, parts), np.repeat(lengths, parts)
    position = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    runs = np.minimum(longer - position * most, most)
    kinds = np.searchsorted(1 << np.array(_SIZES), runs)
    sizes = np.array(_SIZES)[kinds]
    # A run: a bit that says so, 2 bits of its size's kind, its length less one, the word.
    codes = (((1 << 2 | kinds) << sizes | (runs - 1)) << _WORD) | values
    bits = 3 + sizes + _WORD
    head = f"{pixels.size * _CHANNELS:032b}{_WORD - 1:05b}"
    head += "".join(f"{size - 1:04b}" for size in _SIZES)
    text = head + "".join(
        f"{code:0{width}b}" for code, width in zip(codes.tolist(), bits.tolist(), strict=True)
    )
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def _source_picture(frame: ExportFrame) -> str:
    """Return where a frame's picture lies, as FiftyOne finds it without a copy.

    Raises:
        AutolabelError: it is inside of a file.

    """
    if part_of(frame.uri):
        raise AutolabelError(
            f"{frame.key} is no file of its own, and FiftyOne shows files: --pictures copy"
        )
    return storage.absolute(frame.uri)


class FiftyOneWriter(Writer):
    """`metadata.json`, `samples.json` and `data/`, as early versions of FiftyOne exported them.

    `samples.json` has a sample for each frame, whose labels hold their masks: one stream. FiftyOne
    sees from `metadata.json` that no version is named, and reads it with `Dataset.from_dir`.
    """

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        path = f"data/{frame.file_name}"
        if self.sink.images == "none":
            path = _source_picture(frame)
        else:
            self.sink.image(path, frame.image)
        height, width = frame.size_hw
        detections = [
            self._detection(number, frame, *crop) for number, crop in enumerate(tight_crops(frame))
        ]
        tags = [frame.split] if frame.split else []
        tags += ["confirmed_empty"] if frame.confirmed_empty else []
        sample = {
            "filepath": path, "tags": tags,
            "metadata": {"_cls": "ImageMetadata", "width": width, "height": height},
            "_media_type": "image", "sequence_id": frame.sequence_id, "camera": frame.camera,
            "frame_number": frame.index, "timestamp_ns": frame.timestamp_ns,
            "frame_key": frame.key, "frame_uri": handed_on(frame.uri), "model": frame.model,
            FIELD: {"_cls": "Detections", "detections": detections},
        }  # fmt: skip
        self.splits[""].add(sample)

    def _detection(
        self, number: int, frame: ExportFrame, instance: Instance,
        box_xyxy_px: tuple[int, int, int, int], mask: npt.NDArray[np.bool_],
    ) -> dict[str, Any]:  # fmt: skip
        self.classes.number(instance.label)
        name = f"{frame.series}/{frame.index}/{number}"
        left, top, right, bottom = box_xyxy_px
        height, width = frame.size_hw
        box = [left / width, top / height, (right - left) / width, (bottom - top) / height]
        data = base64.b64encode(npy_zlib(mask)).decode("ascii")
        return {
            "_id": {"$oid": hashlib.sha256(name.encode()).hexdigest()[:24]}, "_cls": "Detection",
            "tags": [], "attributes": {}, "label": instance.label, "bounding_box": box,
            "mask": {"$binary": {"base64": data, "subType": "00"}}, "confidence": instance.score,
            "index": instance.track_id, "risk": instance.risk,
            "predicted_iou": instance.predicted_iou, "decision": instance.decision,
            **instance.source,
        }  # fmt: skip

    def close(self) -> Mapping[str, Any]:
        """Write what belongs around the samples."""
        metadata = {
            "name": "labels", "media_type": "image", "default_classes": self.classes.names,
            "info": {"description": "labels of sam2-autolabel"},
        }  # fmt: skip
        self.sink.write("metadata.json", json.dumps(metadata, indent=1).encode())
        with self.sink.open("samples.json") as file:
            file.write('{"samples": ')
            self.splits[""].write_to(file)
            file.write("}\n")
        return {"dataset_type": "fiftyone.types.FiftyOneDataset"}
