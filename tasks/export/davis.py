"""DAVIS: palette PNGs of object numbers beside the frames, for video object segmentation."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.export.masks import COVERED, owners
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, FlatNames, ObjectNumbers, Told

_MOST = 254  # 255 is void: pixels that no evaluation counts


def palette() -> bytes:
    """Colours of the numbers 0 to 255, as PASCAL VOC and DAVIS spread their bits: 768 bytes."""
    colors = np.zeros((256, 3), np.uint8)
    numbers = np.arange(256)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= (((numbers >> channel) & 1) << (7 - bit)).astype(np.uint8)
        numbers >>= 3
    return colors.tobytes()


class DavisWriter:
    """`JPEGImages/` and `Annotations/Full-Resolution/SEQUENCE/00000`, `ImageSets/2017/`."""

    def __init__(self, sink: Sink, _classes: Classes, told: Told) -> None:
        self._sink, self._told, self._numbers = sink, told, ObjectNumbers()
        self._names = FlatNames()
        self._sets: dict[str, list[str]] = {}
        self._palette = palette()

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        from PIL import Image

        name = self._names.of(frame.series)
        names = self._sets.setdefault(frame.split or "train", [])
        if names[-1:] != [name]:
            names.append(name)
        path = f"Full-Resolution/{name}/{frame.index:05d}"
        self._sink.image(f"JPEGImages/{path}{frame.suffix}", frame.image)
        numbers = np.array([*self._numbers.of(frame, frame.instances), 0])
        self._told.no_place(
            f"more than {_MOST} objects in a sequence", int((numbers > _MOST).sum())
        )
        numbers[numbers > _MOST] = 0
        owner, covered = owners(frame, np.flatnonzero(numbers).tolist())
        self._told.no_place(COVERED, covered)
        picture = Image.fromarray(numbers.astype(np.uint8)[owner], "L")
        picture.putpalette(self._palette)
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        self._sink.write(f"Annotations/{path}.png", buffer.getvalue())

    def close(self) -> Mapping[str, Any]:
        """Write the lists of sequences."""
        for split, names in self._sets.items():
            text = "".join(f"{name}\n" for name in names)
            self._sink.write(f"ImageSets/2017/{split}.txt", text.encode())
        owner = {"overlaps": "the higher score owns the pixel"}
        return {**owner, **self._names.facts(), **self._numbers.facts()}
