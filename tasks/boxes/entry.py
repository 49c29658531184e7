"""The boxes of one image in an import: its name, where a mistake would be, and how to read them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.coco_boxes import BadBoxesError

# Folders that only say what is in them.
_WRAPPERS = frozenset(
    re.findall(r"\w+", "images image imgs img frames data rgb color")
    + re.findall(r"\w+", "labels label boxes bboxes annotations")
)
_OF_CAMERA = re.compile(r"^label_(\d+)$")


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


def entry_of(
    path: str,
    read: Callable[[str], Boxes],
    size_hw: tuple[int, int] | None = None,
    *,
    fractions: bool = False,
    empty: bool = False,
    version: str = "",
) -> Entry:
    """Make the entry of an image, or of the file of its boxes, at this path of an import."""
    folder, _, name = path.replace("\\", "/").rstrip("/").rpartition("/")
    stem, _, suffix = name.rpartition(".")
    stem = stem if stem and suffix else name  # as pathlib, which takes ten times as long
    return Entry(path, _naming(folder), stem, read, size_hw, fractions, empty, version)


def is_kitti_folder(name: str) -> bool:
    """Whether a folder is called as those of KITTI's labels: `label_02`."""
    return _OF_CAMERA.match(name) is not None


@functools.lru_cache(maxsize=256)  # one folder after the other, with thousands of files each
def _naming(folder: str) -> tuple[str, ...]:
    """Folders that name something; KITTI's `label_02` has the boxes of its `image_02`."""
    parts = [_OF_CAMERA.sub(r"image_\1", part) for part in PurePosixPath(folder).parts]
    return tuple(part for part in parts if part.lower() not in _WRAPPERS)
