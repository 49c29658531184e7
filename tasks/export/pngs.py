"""Pictures in which each pixel belongs to one label: PNG, Cityscapes, KITTI MOTS, DAVIS.

Where masks overlap the higher score owns the pixel.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from rlemasklib import RLEMask

from tasks.export.types import (
    ExportFrame,
    ExportNotes,
    FlatNames,
    ObjectNumbers,
    Writer,
    bitmap,
)

COVERED = "wholly covered by labels of higher scores"
OVERLAPS = {"overlaps": "the higher score owns the pixel"}
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
MOTS_IDS = {"car": 1, "pedestrian": 2, "person": 2}
_MOST_OF_MOTS = 999
_MOST_OF_DAVIS = 254  # 255 is void: pixels that no evaluation counts


def _owners(
    frame: ExportFrame, numbers: Sequence[int], notes: ExportNotes | None = None
) -> npt.NDArray[np.int32]:
    """Return who owns each pixel: int32 (H, W), positions of labels, -1 for none.

    Of equal scores the first owns it. Labels whose number is 0 are not written: they own none. Of
    labels that are covered entirely `notes` counts.
    """
    written = np.flatnonzero(numbers).tolist()
    owner = np.full(frame.size_hw, -1, np.int32)
    for number in sorted(written, key=lambda i: (frame.instances[i].score, -i)):
        owner[bitmap(frame.instances[number], frame.size_hw) > 0] = number
    if notes:
        notes.no_place(COVERED, len(written) - len(np.unique(owner[owner >= 0])))
    return owner


def _png(values: npt.NDArray[Any]) -> bytes:
    """Encode an image of numbers, uint8 or uint16 (H, W), as a grey PNG."""
    import cv2

    return bytes(cv2.imencode(".png", values)[1].tobytes())


def _values(owner: npt.NDArray[np.int32], numbers: Sequence[int], dtype: type) -> Any:
    """Give each pixel the number of the label that owns it, 0 for none."""
    return np.array([*numbers, 0], dtype)[owner]  # -1 is the last one


class PngWriter(Writer):
    """`instances/` uint16: 1 for a frame's first label, and so on; `semantic/` uint8: class + 1.

    `labels/` has what each number is.
    """

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        self.sink.image(f"images/{frame.file_name}", frame.image)
        numbers = range(1, len(frame.instances) + 1)
        classes = [self.classes.number(instance.label) + 1 for instance in frame.instances]
        if len(numbers) >= 1 << 16 or max(classes, default=0) >= 1 << 8:
            why = "more than 65,535 labels in a frame, or 255 classes"
            self.notes.no_place(why, len(numbers))
            return
        owner = _owners(frame, numbers)
        self.sink.write(f"instances/{frame.name}.png", _png(_values(owner, numbers, np.uint16)))
        self.sink.write(f"semantic/{frame.name}.png", _png(_values(owner, classes, np.uint8)))
        rows = [
            {
                "number": number, "label": instance.label, "class": class_, "score": instance.score,
                "track_id": instance.track_id, "risk": instance.risk, "area_px": instance.area_px,
            }
            for number, instance, class_ in zip(numbers, frame.instances, classes, strict=True)
        ]  # fmt: skip
        self.sink.write(f"labels/{frame.name}.json", json.dumps(rows).encode())

    def close(self) -> Mapping[str, Any]:
        """Write the class numbers."""
        names = dict(enumerate(["nothing", *self.classes.names]))
        self.sink.write("classes.json", json.dumps(names, indent=1).encode())
        return OVERLAPS


@dataclass
class CityscapesWriter(Writer):
    """`leftImg8bit/SPLIT/CITY/` and `gtFine/SPLIT/CITY/` with `_instanceIds` and `_labelIds`.

    The city is the sequence and camera, without underscores. Classes that Cityscapes does not have
    are left out; a class map brings them in.
    """

    _cities: FlatNames = field(
        default_factory=lambda: FlatNames(lambda name: re.sub(r"[^A-Za-z0-9-]", "", name) or "city")
    )

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        city = self._cities.of(frame.series)
        name = f"{frame.split or 'train'}/{city}/{city}_000000_{frame.index:06d}"
        self.sink.image(f"leftImg8bit/{name}_leftImg8bit{frame.usual_suffix}", frame.image)
        ids: list[int] = []
        full: list[int] = []
        counts = Counter[int]()
        for instance in frame.instances:
            number, told_apart = CITYSCAPES.get(instance.label.lower(), (0, False))
            if not number:
                self.notes.no_place(f"class {instance.label} is none of Cityscapes'")
            ids.append(number)
            full.append(number * 1000 + counts[number] if told_apart else number)
            counts[number] += 1
        if max(counts.values(), default=0) > 1000:
            raise ValueError(f"{frame.uri}: more than 1,000 labels of one class")
        owner, path = _owners(frame, ids, self.notes), f"gtFine/{name}_gtFine"
        self.sink.write(f"{path}_instanceIds.png", _png(_values(owner, full, np.uint16)))
        self.sink.write(f"{path}_labelIds.png", _png(_values(owner, ids, np.uint8)))

    def close(self) -> Mapping[str, Any]:
        """Say which city is which sequence."""
        return {"cities": self._cities.facts()["sequence_names"]}


@dataclass
class MotsWriter(Writer):
    """`instances/0000/000000.png` (class * 1000 + number), `instances_txt/0000.txt`.

    Cars and people alone. The benchmark's tools take sequences by number; `export.json` says which
    is which.
    """

    _numbers: ObjectNumbers = field(default_factory=ObjectNumbers)
    _names: dict[str, str] = field(default_factory=dict)
    _file: IO[str] | None = None
    _maps: dict[str, dict[str, str]] = field(default_factory=dict)  # lines of sequences, by split

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        name = f"{max(len(self._names) - 1, 0):04d}"
        if self._file is None or self._names[name] != frame.series:
            self._upload()
            name = f"{len(self._names):04d}"
            self._names[name] = frame.series
            self._file = (self.sink.folder / f"{name}.txt").open("w")
        line = f"{name} empty 000000 {frame.index:06d}\n"
        self._maps.setdefault(frame.split or "all", {})[name] = line
        self.sink.image(f"images/{name}/{frame.index:06d}{frame.usual_suffix}", frame.image)
        values = [0] * len(frame.instances)
        known = [
            n for n, instance in enumerate(frame.instances) if instance.label.lower() in MOTS_IDS
        ]
        self.notes.no_place("class is neither car nor pedestrian", len(values) - len(known))
        chosen = [frame.instances[n] for n in known]
        for n, number in zip(known, self._numbers.of(frame, chosen), strict=True):
            if number > _MOST_OF_MOTS:
                self.notes.no_place("more than 999 objects in a sequence")
            else:
                values[n] = MOTS_IDS[frame.instances[n].label.lower()] * 1000 + number
        picture = _values(_owners(frame, values, self.notes), values, np.uint16)
        self.sink.write(f"instances/{name}/{frame.index:06d}.png", _png(picture))
        height, width = frame.size_hw
        for value in np.unique(picture[picture > 0]).tolist():
            rle = RLEMask.from_array(picture == value).to_dict()
            words = f"{frame.index} {value} {value // 1000} {height} {width}"
            self._file.write(f"{words} {rle['counts'].decode('ascii')}\n")

    def _upload(self) -> None:
        """Finish the text file of the sequence before."""
        if self._file is not None:
            self._file.close()
            path = Path(self._file.name)
            self.sink.upload(f"instances_txt/{path.name}", path)

    def close(self) -> Mapping[str, Any]:
        """Write the lists of sequences."""
        self._upload()
        for split, lines in self._maps.items():
            self.sink.write(f"evaluate_mots.seqmap.{split}", "".join(lines.values()).encode())
        return {"sequence_names": self._names, **OVERLAPS, **self._numbers.facts()}


@dataclass
class DavisWriter(Writer):
    """`JPEGImages/` and `Annotations/Full-Resolution/SEQUENCE/00000`, `ImageSets/2017/`.

    Palette pictures of object numbers beside the frames, for video object segmentation.
    """

    _numbers: ObjectNumbers = field(default_factory=ObjectNumbers)
    _names: FlatNames = field(default_factory=FlatNames)
    _sets: dict[str, list[str]] = field(default_factory=dict)  # names of sequences, by split

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        from PIL import Image

        name = self._names.of(frame.series)
        names = self._sets.setdefault(frame.split or "train", [])
        if names[-1:] != [name]:
            names.append(name)
        path = f"Full-Resolution/{name}/{frame.index:05d}"
        self.sink.image(f"JPEGImages/{path}{frame.usual_suffix}", frame.image)
        numbers = np.array(self._numbers.of(frame, frame.instances), int)
        above = numbers > _MOST_OF_DAVIS
        self.notes.no_place(f"more than {_MOST_OF_DAVIS} objects in a sequence", int(above.sum()))
        numbers[above] = 0
        owner = _owners(frame, numbers.tolist(), self.notes)
        picture = Image.fromarray(_values(owner, numbers.tolist(), np.uint8), "L")
        picture.putpalette(palette())
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        self.sink.write(f"Annotations/{path}.png", buffer.getvalue())

    def close(self) -> Mapping[str, Any]:
        """Write the lists of sequences."""
        for split, names in self._sets.items():
            text = "".join(f"{name}\n" for name in names)
            self.sink.write(f"ImageSets/2017/{split}.txt", text.encode())
        return {**OVERLAPS, **self._names.facts(), **self._numbers.facts()}


def palette() -> bytes:
    """Colours of the numbers 0 to 255, as PASCAL VOC and DAVIS spread their bits: 768 bytes."""
    number, bit, channel = np.ogrid[:256, :8, :3]
    bits = (number >> (3 * bit + channel)) & 1
    return bytes((bits << (7 - bit)).sum(axis=1).astype(np.uint8).tobytes())
