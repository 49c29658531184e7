"""What every import is read into: rows of boxes by image, and how each image's are looked up."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from sam2_core.types import AutolabelError, Boxes

# Folders that only say what is in them.
_WRAPPERS = frozenset(
    re.findall(r"\w+", "images image imgs img frames data rgb color")
    + re.findall(r"\w+", "labels label boxes bboxes annotations")
)
_OF_CAMERA = re.compile(r"^label_(\d+)$")
Xyxy = tuple[float, float, float, float]


class BadBoxesError(ValueError):
    """Boxes of one image that cannot be read; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """A box.

    Attributes:
        label: its class.
        xyxy_px: left, top, right, bottom; in fractions where its image says so.
        score: as the source has it, in [0, 1] or not.
        track_id: the same for one object in all images, or None.

    """

    label: str
    xyxy_px: Xyxy
    score: float = 1.0
    track_id: int | None = None


def shown(value: Any) -> str:
    """Show a value of a file as json, cut where it is long."""
    return f"{json.dumps(value, default=str):.60}"


def four_numbers(value: Any, name: str) -> Xyxy:
    """Return four numbers of a file; ValueError for anything else."""
    try:
        one, two, three, four = map(float, value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{name} must be four numbers, and is {shown(value)}") from None
    return one, two, three, four


def number(value: Any, name: str) -> float:
    """Return a number of a file; ValueError for anything else."""
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{name} must be a number, and is {shown(value)}") from None


def whole_number(value: Any, name: str) -> int:
    """Return a whole number of at most 64 bits; ValueError for anything else."""
    try:
        found = int(value)
        if isinstance(value, float) and value != found:
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{name} {shown(value)} is not a whole number") from None
    if not -(2**63) <= found < 2**63:
        raise ValueError(f"{name} has more than 64 bits")
    return found


def looked_up(key: Any, values: Mapping[Hashable, Any]) -> Any:
    """Return what a file's key names, None for a key that is not there or cannot be one."""
    return values.get(key) if isinstance(key, Hashable) else None


def size_hw_of(height: Any, width: Any) -> tuple[int, int] | None:
    """(height, width) where a file tells; exporters that do not know write 0."""
    try:
        size_hw = int(height), int(width)
    except (ValueError, TypeError, OverflowError):
        return None
    return size_hw if min(size_hw) > 0 else None


def boxes_of(rows: Iterable[Row], source: str) -> Boxes:
    """Return rows as boxes that come from `source`, in their order."""
    rows = tuple(rows)
    tracked = [-1 if one.track_id is None else one.track_id for one in rows]
    known = any(one.track_id is not None for one in rows)
    return Boxes(
        np.array([one.xyxy_px for one in rows], np.float32).reshape(-1, 4),
        np.array([one.score for one in rows], np.float32),
        tuple(one.label for one in rows),
        np.array(tracked, np.int64) if known else None,
        source,
    )


@dataclass(slots=True)
class ImageRows:
    """The boxes of an image in the order of the file; `problem` says why they cannot be read."""

    size_hw: tuple[int, int] | None = None
    rows: list[Row] = field(default_factory=list)
    problem: str = ""
    fractions: bool = False

    def add(self, where: str, read: Callable[..., Row | None], *what: Any) -> None:
        """Add the row that is read of something; one that cannot be read is the image's problem."""
        try:
            row = read(*what)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            self.problem = self.problem or f"{where}: {error}"
        else:
            self.rows += [row] if row else []

    def boxes(self, source: str) -> Boxes:
        """Return them.

        Raises:
            BadBoxesError: one of them cannot be read.

        """
        if self.problem:
            raise BadBoxesError(self.problem)
        return boxes_of(self.rows, source)


@dataclass(frozen=True)
class Rows:
    """An import that was read as a whole.

    Attributes:
        images: their names and rows; a name may be there twice.
        notes: what of it belongs to no image, in words.
        classes: that it declares, with boxes or without.

    """

    images: tuple[tuple[str, ImageRows], ...]
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def counts(self) -> Counter[str]:
        """Count the boxes of every class; classes without any are there with 0."""
        counts = Counter(dict.fromkeys(self.classes, 0))
        counts.update(one.label for _, image in self.images for one in image.rows)
        return counts


@dataclass(frozen=True)
class Entry:
    """The boxes of one image.

    Attributes:
        name: of the image, or of the file of its boxes.
        parents, stem: what of it the image's address has to hold.
        read: returns the boxes, whose source is the text given.
        size_hw: of the image that they were made on, None where nobody says.
        fractions: they are in fractions of the picture, not in pixels.
        empty: there is none: a list may name pictures that show nothing.
        version: of the remote file that they are read from; "" where reading them costs nothing.

    """

    name: str
    parents: tuple[str, ...]
    stem: str
    read: Callable[[str], Boxes]
    size_hw: tuple[int, int] | None = None
    fractions: bool = False
    empty: bool = False
    version: str = ""

    def digest(self) -> str:
        """Return what changes with these boxes, and with none of another image."""
        if self.version:
            return f"{self.name}\0{self.version}"
        try:
            boxes = self.read("")
        except (AutolabelError, BadBoxesError) as error:
            return f"{self.name}\0{error}"
        tracks = None if boxes.track_ids is None else boxes.track_ids.tolist()
        rows = (boxes.xyxy_px.tolist(), boxes.scores.tolist(), boxes.labels, tracks)
        return repr((self.name, self.size_hw, self.fractions, rows))


def entry_of(path: str, read: Callable[[str], Boxes], **known: Any) -> Entry:
    """Make the entry of an image, or of the file of its boxes, at this path of an import."""
    folder, _, name = path.replace("\\", "/").rstrip("/").rpartition("/")
    stem, _, suffix = name.rpartition(".")
    stem = stem if stem and suffix else name  # as pathlib, which takes ten times as long
    return Entry(path, _naming(folder), stem, read, **known)


def is_kitti_folder(name: str) -> bool:
    """Whether a folder has a name of KITTI's labels, such as `label_02`."""
    return _OF_CAMERA.match(name) is not None


@functools.lru_cache(maxsize=256)  # one folder after the other, with thousands of files each
def _naming(folder: str) -> tuple[str, ...]:
    """Folders that name something; KITTI's `label_02` has the boxes of its `image_02`."""
    parts = [_OF_CAMERA.sub(r"image_\1", part) for part in PurePosixPath(folder).parts]
    return tuple(part for part in parts if part.lower() not in _WRAPPERS)
