"""Small numbers for objects, where a format has no room for track ids of any size."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.export.types import ExportFrame, Instance


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
        numbers, used = [], set()
        for one in instances:
            number = 0 if one.track_id is None else self._of_track[one.track_id]
            if not number or number in used:  # a track that is there twice in one frame
                free += 1
                number = free
                self.untracked += 1
            used.add(number)
            numbers.append(number)
        return numbers

    def facts(self) -> dict[str, int]:
        """Say how many labels had no track."""
        return {"labels_without_track": self.untracked}


class FlatNames:
    """Names without folders for the cameras of sequences, each unlike all others."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, series: str) -> str:
        """Return the name of a sequence's camera: `SEQUENCE__CAMERA`, with a number if need be."""
        if series not in self._names:
            plain, taken, number = series.replace("/", "__"), {*self._names.values()}, 1
            name = plain
            while name in taken:
                number += 1
                name = f"{plain}-{number}"
            self._names[series] = name
        return self._names[series]

    def facts(self) -> dict[str, dict[str, str]]:
        """Say which sequence and camera each name is."""
        return {"sequence_names": {name: series for series, name in self._names.items()}}
