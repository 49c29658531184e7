"""What travels from a run's labels to the writer of a format, and what every writer is."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from sam2_core.mask_geometry import Bitmap
from tasks.frames.identity import part_of
from tasks.masks.crops import paint, segments_of

if TYPE_CHECKING:
    from tasks.export.sink import Lines, Sink

XyxyPx = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Instance:
    """One label of one frame, with a mask that is not empty.

    Attributes:
        label: class, after the class map.
        score: of the box, in [0, 1].
        box_xyxy_px: the box that prompted the mask; the mask may leave it.
        rle: COCO compressed counts of the whole image.
        area_px: pixels of the mask.
        track_id: the same for one object in all frames of a camera, or None.
        risk: how likely the label is wrong, in [0, 1].
        predicted_iou: what the model expects of its mask.
        decision: what people decided, "" where nobody has looked.
        interpolated: whether no detector has found it: its box lies between two of its track.

    """

    label: str
    score: float
    box_xyxy_px: XyxyPx
    rle: bytes
    area_px: int
    track_id: int | None = None
    risk: float = 0.0
    predicted_iou: float = 0.0
    decision: str = ""
    interpolated: bool = False


@dataclass(frozen=True, slots=True)
class ExportFrame:
    """A frame and the labels of it that were chosen.

    Attributes:
        sequence_id, camera, index: which frame.
        timestamp_ns: or None.
        uri: address of its picture; see `tasks.frames.parts` for those inside of files.
        size_hw: (height, width).
        split: train, val, ...; "" where there are none.
        model: what made the masks, for people.
        file_stem: name of its picture without the ending, unlike others of its camera.
        instances: labels, in the order of their boxes.
        image: the picture on this machine, or None.

    """

    sequence_id: str
    camera: str
    index: int
    timestamp_ns: int | None
    uri: str
    size_hw: tuple[int, int]
    split: str
    model: str
    file_stem: str
    instances: tuple[Instance, ...]
    image: Path | None = None

    @property
    def series(self) -> str:
        """Folder of its camera: sequence and camera."""
        return f"{self.sequence_id}/{self.camera}" if self.camera else self.sequence_id

    @property
    def name(self) -> str:
        """Path of its files below a format's folders, without an ending."""
        stem = f"{self.series}/{self.file_stem}"
        return f"{self.split}/{stem}" if self.split else stem

    @property
    def file_name(self) -> str:
        """`name` with the ending of its picture."""
        return f"{self.name}{self.suffix}"

    @property
    def suffix(self) -> str:
        """Ending of its picture, with the dot."""
        part = part_of(self.uri)
        if part and self.image is not None:
            return self.image.suffix
        if part is None or part.is_member:
            return Path(part.stream if part else self.uri).suffix.lower()
        return ".jpg"


def rle_dict(instance: Instance, size_hw: tuple[int, int]) -> dict[str, Any]:
    """Return a mask as pycocotools takes it."""
    return {"size": list(size_hw), "counts": instance.rle}


def bitmap(instance: Instance, size_hw: tuple[int, int]) -> Bitmap:
    """Pixels of a mask: uint8 (H, W) of 0 and 1."""
    return np.asarray(coco_mask.decode(rle_dict(instance, size_hw)), np.uint8)


def tight_box(instance: Instance, size_hw: tuple[int, int]) -> tuple[float, float, float, float]:
    """Smallest box around a mask: x, y, width, height in pixels."""
    x, y, width, height = coco_mask.toBbox(rle_dict(instance, size_hw)).tolist()
    return x, y, width, height


def tight_crops(
    frame: ExportFrame,
) -> Iterator[tuple[Instance, tuple[int, int, int, int], npt.NDArray[np.bool_]]]:
    """Yield each label with the smallest box around its mask, xyxy in pixels, and what is in it.

    The masks are bool (height, width) of their boxes; no picture of the whole image is made.
    """
    segments = segments_of([one.rle for one in frame.instances], frame.size_hw)
    bounds = segments.bounds_xyxy_px()
    masks = paint(segments, bounds)
    for one, box, mask in zip(frame.instances, bounds.tolist(), masks, strict=True):
        left, top, right, bottom = box
        yield one, (left, top, right, bottom), np.ascontiguousarray(mask)


class FileStems:
    """Names of pictures for one camera: their own; frames of videos have their number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, uri: str, index: int) -> str:
        """Return a picture's name without its ending; an equal one before it makes it longer."""
        part, number = part_of(uri), f"{index:06d}"
        stem = Path(part.stream if part else uri).stem if not part or part.is_member else number
        while stem.casefold() in self._taken:
            stem += f"-{number}"
        self._taken.add(stem.casefold())
        return stem


class Classes:
    """Numbers of classes: those that were asked for in their order, others as they come."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}

    def number(self, name: str) -> int:
        """Return a class's number, from 0."""
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        """All classes in the order of their numbers."""
        return list(self._numbers)


@dataclass
class ExportNotes:
    """What a writer has to say at the end, for the report.

    Attributes:
        left_out: labels that were not chosen or that the format has no place for, by reason.
        unreadable: sequences whose manifest cannot be read.
        unwritten: how many of them were chosen.
        classes: that labels have, before they are renamed.
        named_as_track: labels that were detected as another class than their track.

    """

    left_out: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    unwritten: int = 0
    classes: set[str] = field(default_factory=set)
    named_as_track: int = 0

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count labels that are not written."""
        if count:
            self.left_out[reason] = self.left_out.get(reason, 0) + count

    def no_place(self, reason: str, count: int = 1) -> None:
        """Count chosen labels that the format has no place for."""
        self.leave_out(reason, count)
        self.unwritten += count


@dataclass
class Writer:
    """Writes one format, frame by frame; keeps nothing that grows with the labels.

    Attributes:
        sink: where to.
        classes: numbers of classes.
        notes: counts labels that the format has no place for.
        splits: what is written of each split so far, where that is put together at the end.

    """

    sink: Sink
    classes: Classes
    notes: ExportNotes
    splits: dict[str, Lines] = field(init=False)

    def __post_init__(self) -> None:
        self.splits = defaultdict(self.sink.lines)

    def add(self, frame: ExportFrame) -> None:
        """Write a frame. The frames of a camera come in one run and in order."""
        raise NotImplementedError

    def close(self) -> Mapping[str, Any]:
        """Write what belongs at the end; returns facts for the report."""
        return {}


class ObjectNumbers:
    """Numbers from 1 for the objects of one camera's frames: a track keeps its number.

    Labels without a track get numbers that nothing else of their frame has, and that mean
    nothing in the next frame.
    """

    def __init__(self) -> None:
        self._series, self._of_track = "", dict[int, int]()
        self.untracked = 0

    def of(self, frame: ExportFrame, instances: Sequence[Instance]) -> list[int]:
        """Return a number for each of some labels of a frame."""
        if frame.series != self._series:
            self._series, self._of_track = frame.series, {}
        for one in instances:
            if one.track_id is not None:
                self._of_track.setdefault(one.track_id, len(self._of_track) + 1)
        free = len(self._of_track)
        numbers: list[int] = []
        for one in instances:
            number = 0 if one.track_id is None else self._of_track[one.track_id]
            if not number or number in numbers:  # a track that is there twice in one frame
                free += 1
                number = free
                self.untracked += 1
            numbers.append(number)
        return numbers

    def facts(self) -> dict[str, int]:
        """Say how many labels had no track."""
        return {"labels_without_track": self.untracked}


class FlatNames:
    """Names without folders for the cameras of sequences, each unlike all others.

    Args:
        plain: gives the name of a series; by default `SEQUENCE__CAMERA`.

    """

    def __init__(self, plain: Callable[[str], str] = lambda series: series.replace("/", "__")):
        self._plain = plain
        self._names: dict[str, str] = {}

    def of(self, series: str) -> str:
        """Return the name of a sequence's camera, with a number if need be."""
        if series not in self._names:
            plain = self._plain(series)
            names = itertools.chain([plain], (f"{plain}-{n}" for n in itertools.count(2)))
            self._names[series] = next(one for one in names if one not in self._names.values())
        return self._names[series]

    def facts(self) -> dict[str, dict[str, str]]:
        """Say which sequence and camera each name is."""
        return {"sequence_names": {name: series for series, name in self._names.items()}}
