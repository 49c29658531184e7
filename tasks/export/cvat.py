"""CVAT's XML 1.1 for images: masks as run lengths of their box, row by row, without loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import IO, Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import numpy.typing as npt

from tasks.export.masks import tight_crops
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, Instance, Told

_ATTRIBUTES = ("score", "risk", "track_id", "decision")


class _Split:
    """The images of one split's file until the labels are known, which come before them."""

    def __init__(self, sink: Sink, name: str) -> None:
        self.name, self.count = name, 0
        self.images: IO[str] = (sink.folder / f"{name}.cvat").open("w+")


class CvatWriter:
    """`annotations[_SPLIT].xml` and `images/`."""

    def __init__(self, sink: Sink, classes: Classes, _told: Told) -> None:
        self._sink, self._classes = sink, classes
        self._splits: dict[str, _Split] = {}

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        if frame.split not in self._splits:
            self._splits[frame.split] = _Split(self._sink, frame.split)
        split = self._splits[frame.split]
        name = f"{frame.name}{frame.suffix}"
        self._sink.image(f"images/{name}", frame.image)
        height, width = frame.size_hw
        split.images.write(
            f'  <image id="{split.count}" name={quoteattr(name)} '
            f'width="{width}" height="{height}">\n'
        )
        split.count += 1
        for instance, box_xyxy_px, mask in tight_crops(frame):
            self._classes.number(instance.label)
            split.images.write(_mask(instance, box_xyxy_px, mask.view(np.uint8)))
        split.images.write("  </image>\n")

    def close(self) -> Mapping[str, Any]:
        """Put the files together."""
        for split in self._splits.values():
            ending = f"_{split.name}" if split.name else ""
            with self._sink.open(f"annotations{ending}.xml") as file:
                file.writelines(_head(self._classes.names, split))
                with contextlib.closing(split.images):
                    split.images.seek(0)
                    file.writelines(split.images)
                file.write("</annotations>\n")
        return {}


def _head(names: list[str], split: _Split) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n'
    yield f"  <meta>\n    <task>\n      <name>{escape(split.name or 'labels')}</name>\n"
    yield f"      <size>{split.count}</size>\n      <mode>annotation</mode>\n      <labels>\n"
    attributes = "".join(
        f"<attribute><name>{name}</name><mutable>True</mutable><input_type>text</input_type>"
        "<default_value></default_value><values></values></attribute>"
        for name in _ATTRIBUTES
    )
    for name in names:
        yield f"        <label><name>{escape(name)}</name><type>mask</type>"
        yield f"<attributes>{attributes}</attributes></label>\n"
    yield "      </labels>\n    </task>\n  </meta>\n"


def _mask(
    one: Instance, box_xyxy_px: tuple[int, int, int, int], crop: npt.NDArray[np.uint8]
) -> str:
    left, top = box_xyxy_px[:2]
    lengths = ", ".join(map(str, run_lengths(crop).tolist()))
    track = "" if one.track_id is None else str(one.track_id)
    values = (f"{one.score:.6f}", f"{one.risk:.6f}", track, one.decision)
    told = "".join(
        f'<attribute name="{name}">{escape(value)}</attribute>'
        for name, value in zip(_ATTRIBUTES, values, strict=True)
    )
    return (
        f'    <mask label={quoteattr(one.label)} source="auto" occluded="0" rle="{lengths}" '
        f'left="{left}" top="{top}" width="{crop.shape[1]}" height="{crop.shape[0]}" z_order="0">'
        f"{told}</mask>\n"
    )


def run_lengths(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Lengths of the runs of 0 and 1 in turn, row by row, beginning with those of 0."""
    flat = pixels.ravel()
    borders = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.concatenate([[0], borders, [flat.size]]))
    return np.concatenate([[0], lengths]) if flat[0] else lengths
