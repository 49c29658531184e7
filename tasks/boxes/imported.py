"""Boxes that somebody else made, looked up by frame: which of them belong to it.

A box file belongs to an image when their names without extension are equal and every folder that
the box file names below its root is in the image's address, so that `CAM_BACK/0001.txt` never
labels `CAM_FRONT/0001.jpg`. Frames of videos go by their number. Planning refuses
box files that belong to two frames (`tasks.boxes.matching`).

Boxes are in pixels of the frame as displayed. A frame that its EXIF orientation turns is labeled
where the size that COCO tells says which way its boxes are, and is a failure elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from urllib.parse import unquote

import numpy as np

from sam2_core.types import Boxes
from tasks.boxes.rows import BadBoxesError, Entry, Rows, entry_of
from tasks.frames.identity import part_of
from tasks.frames.images import UPRIGHT, BadImageError, shown_size, stored_size, turn_boxes
from tasks.types import Footage, FrameFailure, FrameRef, VideoRef

_NUMBERED = re.compile(r"(?:frame[_-]?)?0*(\d+)")
_SHOWN_NAMES = 5


@dataclass(frozen=True)
class ImportedBoxes:
    """Imported boxes, looked up by frame.

    Attributes:
        where: address of the import, for messages.
        stamp: name of the import; part of the run's key and on every box.
        version: of the import as a whole: another one may hold other boxes of any frame.
        entries: all of them.
        class_counts: boxes of every class; None for text files, which are read one by one.
        notes: what of it belongs to no image, in words.

    """

    where: str
    stamp: str
    version: str
    entries: tuple[Entry, ...]
    class_counts: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()
    # By name without extension and last folder, or "": a name may be there for every drive.
    _by_stem: dict[str, dict[str, list[Entry]]] = field(default_factory=dict, repr=False)
    # For the frames of videos, which have no names: by last folder and number.
    _by_number: dict[str, dict[int, list[Entry]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for entry in self.entries:
            folder = entry.parents[-1] if entry.parents else ""
            self._by_stem.setdefault(entry.stem, {}).setdefault(folder, []).append(entry)
            number = _NUMBERED.fullmatch(entry.stem)
            if number:
                numbers = self._by_number.setdefault(folder, {})
                numbers.setdefault(int(number[1]), []).append(entry)

    @staticmethod
    def of_rows(rows: Rows, where: str, stamp: str) -> ImportedBoxes:
        """Return boxes that were read as a whole."""
        entries = tuple(
            entry_of(
                name, image.boxes, size_hw=image.size_hw, fractions=image.fractions,
                empty=not image.rows and not image.problem,
            )
            for name, image in rows.images
        )  # fmt: skip
        return ImportedBoxes(where, stamp, _digest(entries), entries, rows.counts(), rows.notes)

    def of(self, frame: FrameRef) -> Boxes | FrameFailure:
        """Boxes of a frame in the order of the file, none when the import has none for it.

        A frame with `local_path` is compared with what its boxes were made on; those in fractions
        need it.

        Raises:
            AutolabelError: its file cannot be read now, or was replaced: no answer about the frame.

        """
        found = self.entries_of(frame)
        if not found:
            return Boxes.empty(self.stamp)
        if len(found) > 1:
            names = ", ".join(entry.name for entry in found[:_SHOWN_NAMES])
            return FrameFailure.of(
                frame, "boxes", f"several imported images fit this frame: {names}"
            )
        try:
            boxes = found[0].read(self.stamp)
            return _as_displayed(boxes, found[0], frame)
        except (BadBoxesError, BadImageError) as error:
            stage = "boxes" if isinstance(error, BadBoxesError) else "decode"
            return FrameFailure.of(frame, stage, str(error))

    def entries_of(self, frame: FrameRef) -> list[Entry]:
        """Entries that fit a frame; those that name most of its folders."""
        index = _number_of(frame)
        if index is not None:
            around = _around(frame)
            found = [self._by_number.get(folder, {}).get(index, []) for folder in around]
            return _fitting(itertools.chain.from_iterable(found), around)
        named = self._named(frame)
        around = _around(frame) if named else set()
        return _fitting(
            (entry for folder in around & named.keys() for entry in named[folder]), around
        )

    def _named(self, frame: FrameRef) -> dict[str, list[Entry]]:
        """Entries of a frame's name, by their last folder."""
        return self._by_stem.get(PurePosixPath(_path(frame)).stem, {})

    def of_other_folders(self, frame: FrameRef) -> Entry | None:
        """Return an entry that has a frame's name, and names folders that are not the frame's."""
        return next(itertools.chain.from_iterable(self._named(frame).values()), None)

    def entries_of_video(self, video: VideoRef) -> Iterator[tuple[int, list[Entry]]]:
        """Numbers of frames that a video may have, with the entries that fit them."""
        around = _around(video)
        for index, found in sorted(self._numbered(around).items()):
            fitting = _fitting(found, around) if index in video.selection else []
            if fitting:
                yield index, fitting

    def digest_of(self, footage: Iterable[Footage]) -> str:
        """Return the digest of the boxes that belong to the frames of a sequence.

        Boxes of other sequences do not change it: it is a part of the keys of this one's labels.
        """
        found: dict[str, Entry] = {}
        for one in footage:
            if isinstance(one, VideoRef):  # nobody has opened it yet: all that its frames may have
                around = _around(one)
                numbered = self._numbered(around).values()
                fitting = [entry for some in numbered for entry in _fitting(some, around)]
            else:
                fitting = self.entries_of(one)
            found |= {entry.name: entry for entry in fitting}
        return _digest(found[name] for name in sorted(found))

    def _numbered(self, around: set[str]) -> dict[int, list[Entry]]:
        found: dict[int, list[Entry]] = {}
        for folder in around & self._by_number.keys():
            for index, entries in self._by_number[folder].items():
                found.setdefault(index, []).extend(entries)
        return found


def _digest(entries: Iterable[Entry]) -> str:
    digest = hashlib.sha256()
    for one in entries:
        digest.update(one.digest().encode(errors="surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def _path(one: Footage) -> str:
    """Path of a frame or video in its address, unquoted, without the number of a video's frame."""
    part = part_of(f"{one.address}#frame=0" if isinstance(one, VideoRef) else one.uri)
    uri = part.path if part else one.uri
    return unquote(uri) if uri.startswith(("http://", "https://")) else uri


def _number_of(frame: Footage) -> int | None:
    """Return the number of a video's frame in it; pictures with names of their own have none."""
    part = part_of(frame.uri)
    return None if part is None or part.is_member else part.number


def _around(one: Footage) -> set[str]:
    """Folders that a frame lies in; a video is one for its frames."""
    path = PurePosixPath(_path(one))
    if isinstance(one, VideoRef) or _number_of(one) is not None:
        return {*path.with_suffix("").parts, one.camera, one.sequence_id, ""}
    return {*path.parent.parts, one.camera, one.sequence_id, ""}


def _fitting(found: Iterable[Entry], around: set[str]) -> list[Entry]:
    fitting = [entry for entry in found if around.issuperset(entry.parents)]
    most = max((len(entry.parents) for entry in fitting), default=0)
    return [entry for entry in fitting if len(entry.parents) == most]


def _as_displayed(boxes: Boxes, entry: Entry, frame: FrameRef) -> Boxes:
    """Return an entry's boxes in pixels of a downloaded frame as displayed: turned as EXIF says.

    Raises BadBoxesError for a picture of another size than that which they were made on, or where
    nothing tells whether of the turned one.
    """
    if not len(boxes) or not frame.local_path:
        return boxes
    made_on_hw = entry.size_hw
    stored_hw, orientation = stored_size(frame)
    shown_hw = shown_size(stored_hw, orientation)
    if made_on_hw is not None and made_on_hw not in {stored_hw, shown_hw}:
        raise BadBoxesError(
            f"the boxes are for {made_on_hw[1]}x{made_on_hw[0]} pixels, the frame has "
            f"{shown_hw[1]}x{shown_hw[0]}"
        )
    if entry.fractions:
        boxes = replace(boxes, xyxy_px=boxes.xyxy_px * np.array(stored_hw[::-1] * 2, np.float32))
    if orientation == UPRIGHT or (made_on_hw == shown_hw and shown_hw != stored_hw):
        return boxes
    if made_on_hw is None or shown_hw == stored_hw:
        raise BadBoxesError(
            f"EXIF orientation {orientation} turns the frame, but nothing says whether the boxes "
            "are for the picture before or after that; save the picture turned, or give COCO boxes "
            "with width and height of the picture that they were made on"
        )
    return replace(boxes, xyxy_px=turn_boxes(boxes.xyxy_px, stored_hw, orientation))


def chosen_boxes(boxes: Boxes, classes: Collection[str], min_score: float) -> Boxes:
    """Return the boxes of these classes (all when empty) with at least this score, in order.

    0 takes whatever score there is, as some tools' scores begin below it. One that is no finite
    number is kept: its row tells that reason.
    """
    known = np.isin(boxes.labels, list(classes)) if classes else np.ones(len(boxes), bool)
    enough = (boxes.scores >= min_score) | (min_score <= 0) | ~np.isfinite(boxes.scores)
    return boxes.chosen(np.flatnonzero(known & enough).tolist())
