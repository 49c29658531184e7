"""Label Studio: tasks with brush masks as predictions, or as annotations where people decided.

A brush mask is an RGBA picture packed bit by bit (thi.ng/rle-pack, as Label Studio takes it): 32
bits of length, 5 of the word's size, four times 4 of the sizes of run lengths, then runs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
import numpy.typing as npt

from tasks.export.cvat import run_lengths
from tasks.export.masks import bitmap
from tasks.export.sink import Lines, Sink
from tasks.export.types import Classes, ExportFrame, Instance, Told

# Bits of run lengths, of which each run takes the least that it fits in.
_SIZES = (3, 4, 8, 16)
_CHANNELS, _WORD = 4, 8
_SERVED = "/data/local-files/?d=images/"


class LabelStudioWriter:
    """`tasks[_SPLIT].json`, `labeling_config.xml` and `images/`."""

    def __init__(self, sink: Sink, classes: Classes, _told: Told) -> None:
        self._sink, self._classes = sink, classes
        self._splits = defaultdict[str, Lines](sink.lines)

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        name = f"{frame.name}{frame.suffix}"
        self._sink.image(f"images/{name}", frame.image)
        results = [self._result(one, number, frame) for number, one in enumerate(frame.instances)]
        decided = [bool(one.decision) for one in frame.instances]
        task: dict[str, Any] = {
            "data": {
                "image": f"{_SERVED}{quote(name)}", "sequence_id": frame.sequence_id,
                "camera": frame.camera, "frame_id": frame.index,
                "timestamp_ns": frame.timestamp_ns,
            },
            "predictions": [{
                "model_version": frame.model,
                "score": min((one.score for one in frame.instances), default=0.0),
                "result": [one for one, by in zip(results, decided, strict=True) if not by],
            }],
            "annotations": [],
        }  # fmt: skip
        if any(decided):
            people = [one for one, by in zip(results, decided, strict=True) if by]
            task["annotations"] = [{"result": people}]
        self._splits[frame.split].add(task)

    def _result(self, one: Instance, number: int, frame: ExportFrame) -> dict[str, Any]:
        self._classes.number(one.label)
        height, width = frame.size_hw
        name = f"{frame.series}/{frame.index}/{number}"
        return {
            "id": hashlib.sha256(name.encode()).hexdigest()[:10], "type": "brushlabels",
            "from_name": "mask", "to_name": "image", "original_width": width,
            "original_height": height, "image_rotation": 0, "score": round(one.score, 6),
            "value": {
                "format": "rle", "rle": list(packed(bitmap(one, frame.size_hw))),
                "brushlabels": [one.label],
            },
            "meta": {
                "risk": round(one.risk, 6), "track_id": one.track_id, "decision": one.decision,
            },
        }  # fmt: skip

    def close(self) -> Mapping[str, Any]:
        """Put the files together."""
        labels = "".join(f"    <Label value={quoteattr(one)}/>\n" for one in self._classes.names)
        config = (
            '<View>\n  <Image name="image" value="$image" zoom="true"/>\n'
            f'  <BrushLabels name="mask" toName="image">\n{labels}  </BrushLabels>\n</View>\n'
        )
        self._sink.write("labeling_config.xml", config.encode())
        for split, lines in self._splits.items():
            with self._sink.open(f"tasks{f'_{split}' if split else ''}.json") as file:
                lines.write_to(file)
                file.write("\n")
        return {}


def packed(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Pack a mask, uint8 (H, W) of 0 and 1, as Label Studio unpacks it."""
    lengths = run_lengths(pixels) * _CHANNELS
    values = np.arange(len(lengths)) % 2 * 255
    most = 1 << _SIZES[-1]
    parts = np.maximum(-(-lengths // most), (lengths > 0).astype(np.int64))
    values, longer = np.repeat(values, parts), np.repeat(lengths, parts)
    place = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    runs = np.minimum(longer - place * most, most)
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
