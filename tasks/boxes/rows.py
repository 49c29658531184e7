"""Boxes of many images that were read at once, row by row, as entries of an import."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sam2_core.types import Boxes
from tasks.boxes.coco_boxes import BadBoxesError
from tasks.boxes.entry import Entry, entry_of


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
    xyxy_px: tuple[float, float, float, float]
    score: float = 1.0
    track_id: int | None = None


@dataclass
class ImageRows:
    """The boxes of an image in the order of the file; `problem` says why they cannot be read."""

    size_hw: tuple[int, int] | None = None
    rows: list[Row] = field(default_factory=list)
    problem: str = ""
    fractions: bool = False

    def boxes(self, source: str) -> Boxes:
        """Return them.

        Raises:
            BadBoxesError: one of them cannot be read.

        """
        if self.problem:
            raise BadBoxesError(self.problem)
        tracked = [-1 if one.track_id is None else one.track_id for one in self.rows]
        known = any(one.track_id is not None for one in self.rows)
        return Boxes(
            np.array([one.xyxy_px for one in self.rows], np.float32).reshape(-1, 4),
            np.array([one.score for one in self.rows], np.float32),
            tuple(one.label for one in self.rows),
            np.array(tracked, np.int64) if known else None,
            source,
        )


@dataclass(frozen=True)
class Rows:
    """An import that was read as a whole: its images by name, and what belongs to none of them."""

    images: dict[str, ImageRows]
    notes: tuple[str, ...] = ()

    def entries(self) -> list[Entry]:
        """Return an entry for every image."""

        def reader(image: ImageRows) -> Callable[[str], Boxes]:
            return image.boxes

        return [
            entry_of(
                name, reader(image), image.size_hw, fractions=image.fractions,
                empty=not image.rows and not image.problem,
            )
            for name, image in self.images.items()
        ]  # fmt: skip

    def counts(self) -> Counter[str]:
        """Count the boxes of every class."""
        return Counter(one.label for image in self.images.values() for one in image.rows)

    def digest(self) -> str:
        """Digest of every box, for imports that are no file."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    def _lines(self) -> Iterator[str]:
        for name, image in sorted(self.images.items()):
            yield f"{name}\0{image.size_hw}\0{image.problem}"
            yield from (repr(one) for one in image.rows)
