"""Which imported boxes belong to which frame of a run, seen before anything is labeled."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sam2_core.types import AutolabelError
from tasks.boxes.imported import ImportedBoxes
from tasks.boxes.rows import BadBoxesError, Entry
from tasks.frames.discover import Discovered
from tasks.store import storage
from tasks.types import Footage, FrameRef, NothingToLabelError, VideoRef
from tasks.wording import counted

# Box files that are read, at most, to see which classes there are.
MOST_READ = 500
_SHOWN = 5


@dataclass
class Matching:
    """Imported boxes and the frames that they were found to belong to.

    Attributes:
        imported: the boxes.
        frames: seen so far; those of videos when these are open (`open_videos`).
        frames_without: how many of those have no entry; the first few are in `examples`.
        other_folders: an entry of the name of one of those, and the frame, in words; "" for none.

    """

    imported: ImportedBoxes
    frames: int = 0
    frames_without: int = 0
    examples: list[str] = field(default_factory=list)
    other_folders: str = ""
    _frame_of: dict[str, str] = field(default_factory=dict)  # an entry's name: a frame's address

    def add(self, footage: Iterable[Footage]) -> None:
        """Find the entries of more frames.

        Raises:
            AutolabelError: an entry belongs to two frames.

        """
        for one in footage:
            if isinstance(one, VideoRef):
                for index, entries in self.imported.entries_of_video(one):
                    self._take(entries, f"{one.address}#frame={index}")
                continue
            entries = self.imported.entries_of(one)
            self._take(entries, one.uri)
            self._count(one, entries)

    def _count(self, frame: FrameRef, entries: list[Entry]) -> None:
        self.frames += 1
        if entries:
            return
        self.frames_without += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(storage.redact(frame.uri))
        near = None if self.other_folders else self.imported.of_other_folders(frame)
        if near:
            self.other_folders = f"{near.name} beside {storage.redact(frame.uri)}"

    def open_videos(self, frames: Iterable[FrameRef]) -> None:
        """Count the frames that opened videos have; boxes of any other number have no frame."""
        there = {one.uri: one for one in frames if "#frame=" in one.uri}
        opened = {_video_of(uri) for uri in there}
        for name, uri in list(self._frame_of.items()):
            if _video_of(uri) in opened and uri not in there:
                del self._frame_of[name]
        for one in there.values():
            self._count(one, self.imported.entries_of(one))

    def with_boxes(self, one: Discovered) -> Discovered:
        """Find the entries of a sequence's frames; returns it with the digest of its boxes.

        Raises:
            AutolabelError: an entry belongs to two frames.

        """
        self.add(one.frames)
        return replace(one, boxes=self.imported.digest_of(one.frames))

    def _take(self, entries: list[Entry], uri: str) -> None:
        for entry in entries:
            other = self._frame_of.setdefault(entry.name, uri)
            if other != uri:
                raise AutolabelError(
                    f"{self.imported.where}: the boxes {entry.name} fit more than one frame: "
                    f"{storage.redact(other)} and {storage.redact(uri)}; name the folder of the "
                    "frame in the name of the boxes (such as CAM_FRONT/0001), or label the folders "
                    "one by one"
                )

    def unmatched(self) -> list[str]:
        """Names of entries with boxes that belong to no frame seen."""
        entries = self.imported.entries
        return [one.name for one in entries if not one.empty and one.name not in self._frame_of]

    def refuse_nothing(self, classes: Collection[str]) -> None:
        """Refuse to label nothing at all; call it when every frame has been seen.

        Raises:
            NothingToLabelError: no entry belongs to any frame, or none has a box of these classes.

        """
        if not self._frame_of:
            if self.other_folders:
                raise NothingToLabelError(
                    f"{self.imported.where}: none of its images is among the frames of the "
                    "sources; files have the same names, but other folders "
                    f"({self.other_folders}): name only folders that the frames lie in, such as "
                    "CAM_FRONT/0001.jpg"
                )
            shown = f", such as {self.examples[0].rsplit('/', 1)[-1]}" if self.examples else ""
            raise NothingToLabelError(
                f"{self.imported.where}: none of its images is among the frames of the sources; "
                f"names must be equal{shown}"
            )
        if classes:
            self._refuse_classes(set(classes))

    def _refuse_classes(self, wanted: set[str]) -> None:
        counts = self.imported.class_counts
        if counts is not None:
            unknown = wanted - {name for name, count in counts.items() if count}
            told = ", ".join(
                f"{name} ({counted(counts[name], 'box', 'boxes')})" for name in sorted(counts)
            )
            # A class that the file knows may have no box in it; one that it does not is a mistake.
            if unknown - counts.keys() or unknown == wanted:
                self._refuse(unknown, told)
            return
        matched = [one for one in self.imported.entries if one.name in self._frame_of]
        seen: set[str] = set()
        for entry in matched[:: len(matched) // MOST_READ + 1]:
            with contextlib.suppress(BadBoxesError, AutolabelError):  # it has no classes
                seen |= set(entry.read("").labels)
            if seen & wanted:
                return
        if len(matched) <= MOST_READ:
            self._refuse(wanted, ", ".join(sorted(seen)))

    def _refuse(self, unknown: set[str], told: str) -> None:
        raise NothingToLabelError(
            f"--classes {','.join(sorted(unknown))}: {self.imported.where} has no such boxes; "
            f"its classes are: {told or 'none'}"
        )

    def lines(self) -> Iterator[str]:
        """Say what does not fit, for a person."""
        without, unmatched = self.frames_without, self.unmatched()
        if without:
            some = _some(self.examples, without)
            yield f"frames without boxes: {without} of {self.frames} ({some})"
        if unmatched:
            some = _some(unmatched[:_SHOWN], len(unmatched))
            every = counted(len(self.imported.entries), "image")
            yield f"boxes without a frame: those of {len(unmatched)} of {every} ({some})"
        yield from self.imported.notes

    def as_json(self) -> dict[str, Any]:
        """Say what does not fit, as plain values."""
        unmatched = self.unmatched()
        return {
            "frames_without_boxes": self.frames_without,
            "boxes_without_frame": len(unmatched),
            "first_boxes_without_frame": unmatched[:_SHOWN],
            "notes": list(self.imported.notes),
        }


def _video_of(uri: str) -> str:
    return uri.rpartition("#frame=")[0]


def _some(names: list[str], count: int) -> str:
    return ", ".join(names) + (", ..." if count > len(names) else "")
