"""KITTI MOTS: one PNG per frame, one text file per sequence; cars and people, no overlaps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from tasks.export.masks import COVERED, owners, png
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, ObjectNumbers, Told

CLASS_IDS = {"car": 1, "pedestrian": 2, "person": 2}
_MOST = 999


class MotsWriter:
    """`instances/0000/000000.png` (class * 1000 + number), `instances_txt/0000.txt`.

    The benchmark's tools take sequences by number; `export.json` says which is which.
    """

    def __init__(self, sink: Sink, _classes: Classes, told: Told) -> None:
        self._sink, self._told, self._numbers = sink, told, ObjectNumbers()
        self._name, self._series = "", list[str]()
        self._file: IO[str] | None = None
        self._maps: dict[str, list[str]] = {}
        self._last = 0

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        from pycocotools import mask as coco_mask

        if self._series[-1:] != [frame.series]:
            self._end()
            self._series.append(frame.series)
            name = f"{len(self._series) - 1:04d}"
            self._name, self._file = name, (self._sink.folder / f"{name}.txt").open("w")
            self._maps.setdefault(frame.split or "all", []).append(name)
        name, self._last = self._name, frame.index
        self._sink.image(f"images/{name}/{frame.index:06d}{frame.suffix}", frame.image)
        values = np.zeros(len(frame.instances) + 1, np.uint16)
        known = [n for n, one in enumerate(frame.instances) if one.label.lower() in CLASS_IDS]
        self._told.no_place(
            "class is neither car nor pedestrian", len(frame.instances) - len(known)
        )
        chosen = [frame.instances[n] for n in known]
        for n, number in zip(known, self._numbers.of(frame, chosen), strict=True):
            if number > _MOST:
                self._told.no_place("more than 999 objects in a sequence")
            else:
                values[n] = CLASS_IDS[frame.instances[n].label.lower()] * 1000 + number
        owner, covered = owners(frame, np.flatnonzero(values).tolist())
        self._told.no_place(COVERED, covered)
        picture = values[owner]
        self._sink.write(f"instances/{name}/{frame.index:06d}.png", png(picture))
        for value in np.unique(picture[picture > 0]).tolist():
            rle = coco_mask.encode(np.asfortranarray((picture == value).astype(np.uint8)))
            height, width = frame.size_hw
            words = f"{frame.index} {value} {value // 1000} {height} {width}"
            if self._file:
                self._file.write(f"{words} {rle['counts'].decode('ascii')}\n")

    def _end(self) -> None:
        if self._file:
            self._file.close()
            self._sink.upload(f"instances_txt/{self._name}.txt", Path(self._file.name))
            lines = next(lines for lines in self._maps.values() if lines[-1:] == [self._name])
            lines[-1] = f"{self._name} empty 000000 {self._last:06d}\n"

    def close(self) -> Mapping[str, Any]:
        """Write the lists of sequences."""
        self._end()
        for split, lines in self._maps.items():
            self._sink.write(f"evaluate_mots.seqmap.{split}", "".join(lines).encode())
        names = {f"{number:04d}": series for number, series in enumerate(self._series)}
        owner = "the higher score owns the pixel"
        return {"sequence_names": names, "overlaps": owner, **self._numbers.facts()}
