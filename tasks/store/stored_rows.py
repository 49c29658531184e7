"""Whether rows read from storage are those of the place where they lay.

Whoever can write to storage can write any name into a file, and names become paths and ids. So a
name counts only when it is the one that the file lies under.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.store.checksums import IncompleteArtifactError

_RANGE = re.compile(r"(\d{6,})-(\d{6,})-([0-9a-f]+)")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\]")


def is_safe_name(name: Any) -> bool:
    """Whether a name can be one part of a path, and nothing but that."""
    return (
        isinstance(name, str) and name not in {"", ".", ".."} and len(name.encode()) <= 255
        and not _UNSAFE.search(name)
    )  # fmt: skip


@dataclass(frozen=True)
class Place:
    """What a chunk's path says: `labels/<sequence_id>/<camera or _>/<start>-<stop>-<key>`."""

    stem: str
    sequence_id: str
    camera: str
    start: int
    stop: int
    key: str

    @staticmethod
    def of(stem: str) -> Place:
        """Take a path apart; `IncompleteArtifactError` when it is not of that form."""
        parts = stem.split("/")
        found = _RANGE.fullmatch(parts[-1])
        if (
            len(parts) != 4
            or parts[0] != "labels"
            or not found
            or not all(map(is_safe_name, parts))
        ):
            raise IncompleteArtifactError(f"{stem!r} is not a place for labels")
        return Place(stem, parts[1], parts[2], int(found[1]), int(found[2]), found[3])

    def holds(self, sequence_id: Any, camera: Any) -> bool:
        """Whether labels of this sequence and camera belong here."""
        return bool(sequence_id == self.sequence_id and (camera or "_") == self.camera)


def check_frames(frames: Any, place: Place) -> None:
    """Hold a table of frames against its place.

    Raises:
        IncompleteArtifactError: rows of another sequence or camera, or another range of frames.

    """
    _check_names(frames, place)
    index = frames["index"].to_numpy()
    whole = len(index) and (index[0], index[-1] + 1) == (place.start, place.stop)
    if not whole or (np.diff(index) <= 0).any():
        raise IncompleteArtifactError(f"{place.stem}: its frames are not those of its name")


def check_rows(rows: Any, place: Place, indices: Collection[int]) -> None:
    """Hold a table of boxes or masks against its place and its frames, each frame's rows in order.

    Raises:
        IncompleteArtifactError: rows of another sequence, camera or frame, or some are not there.

    """
    _check_names(rows, place)
    index, number = rows["index"].to_numpy(), rows["box_index"].to_numpy()
    if not len(index):
        return
    first = np.r_[True, np.diff(index) != 0]
    expected = np.arange(len(index)) - np.maximum.accumulate(np.where(first, range(len(index)), 0))
    known = np.isin(index, list(indices)).all()
    if not known or (np.diff(index) < 0).any() or (number != expected).any():
        raise IncompleteArtifactError(f"{place.stem}: rows that belong to none of its frames")


def _check_names(rows: Any, place: Place) -> None:
    names = {
        (sequence_id, camera)
        for sequence_id in rows["sequence_id"].unique().to_pylist()
        for camera in rows["camera"].unique().to_pylist()
    }
    if not all(place.holds(*name) for name in names):
        raise IncompleteArtifactError(f"{place.stem}: holds labels of another sequence or camera")
