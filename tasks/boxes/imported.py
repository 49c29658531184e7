"""Boxes that somebody else made, looked up by frame: which of them belong to it.

A box file belongs to an image when their names without extension are equal and every folder that
the box file names below its root is in the image's address, so that `CAM_BACK/0001.txt` never
labels `CAM_FRONT/0001.jpg`. Frames of videos go by their number. Planning refuses
box files that belong to two frames (`Matching`).

Boxes are in pixels of the frame as displayed. A frame that its EXIF orientation turns is labeled
where the size that COCO tells says which way its boxes are, and is a failure elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import unquote

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from sam2_core.types import AutolabelError, Boxes
from tasks.frames.discover import FoundSequence
from tasks.frames.identity import handed_on, part_of, plain_name
from tasks.frames.images import UPRIGHT, BadImageError, shown_size, stored_size, turn_boxes
from tasks.passed_over import PassedOver
from tasks.store import storage
from tasks.types import Footage, FrameFailure, FrameRef, NothingFoundError, VideoRef
from tasks.wording import counted

# Folders that only say what is in them.
_WRAPPERS = frozenset(
    re.findall(r"\w+", "images image imgs img frames data rgb color")
    + re.findall(r"\w+", "labels label boxes bboxes annotations")
)
_OF_CAMERA = re.compile(r"^label_(\d+)$")
_WHOLE_PICTURE = 1.01  # in fractions, which writers round
Xyxy = tuple[float, float, float, float]

_KINDS: dict[str, TypeAdapter[Any]] = {
    "four numbers": TypeAdapter(Xyxy),
    "a number": TypeAdapter(float),
    "a whole number of at most 64 bits": TypeAdapter(Annotated[int, Field(ge=-(2**63), lt=2**63)]),
}
FOUR_NUMBERS, NUMBER, WHOLE_NUMBER = _KINDS
# As tools call them; of several the first counts.
_SCORE_NAMES = ("score", "confidence")
_TRACK_NAMES = ("track_id", "instance_id", "tracking_id")


class BadBoxesError(AutolabelError):
    """Boxes of one image that cannot be read; the message is the reason."""


def decoded(data: bytes, where: str) -> str:
    """Text of a file.

    Raises:
        BadBoxesError: it is in no encoding that is read.

    """
    text = storage.text_of(data)
    if "\N{REPLACEMENT CHARACTER}" in text:
        line = text.partition("\N{REPLACEMENT CHARACTER}")[0].count("\n") + 1
        raise BadBoxesError(
            f"{where} is no text in UTF-8 (in line {line}): save it in that encoding"
        )
    return text


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


def read_as(kind: str, value: Any, name: str) -> Any:
    """Return a value of a file as FOUR_NUMBERS, NUMBER or WHOLE_NUMBER; else a ValueError."""
    try:
        return _KINDS[kind].validate_python(value)
    except ValidationError:
        raise ValueError(f"{name} must be {kind}, and is {shown(value)}") from None


def score_and_track(given: Mapping[str, Any]) -> tuple[float, int | None]:
    """Return a box's score, by default 1, and track id; a ValueError where one is no number.

    Args:
        given: facts about the box, by name.

    """
    score = next((name for name in _SCORE_NAMES if name in given), "")
    track = next((name for name in _TRACK_NAMES if given.get(name) is not None), "")
    return (
        read_as(NUMBER, given[score], score) if score else 1.0,
        read_as(WHOLE_NUMBER, given[track], track) if track else None,
    )


def size_hw_of(height: Any, width: Any) -> tuple[int, int] | None:
    """(height, width) where a file tells; exporters that do not know write 0."""
    try:
        size_hw = int(height), int(width)
    except (ValueError, TypeError, OverflowError):
        return None
    return size_hw if min(size_hw) > 0 else None


def around(xs: Sequence[float], ys: Sequence[float]) -> Xyxy:
    """Return the box around points; a side that is no number where one of theirs is none."""
    return float(np.min(xs)), float(np.min(ys)), float(np.max(xs)), float(np.max(ys))


def turned(box_xyxy: Xyxy, degrees: float) -> Xyxy:
    """Return the upright box around a box that is turned about its centre."""
    left, top, right, bottom = box_xyxy
    angle = math.radians(degrees % 360)
    cos, sin = abs(math.cos(angle)), abs(math.sin(angle))
    x, y, width, height = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
    across, down = width * cos + height * sin, width * sin + height * cos
    return x - across / 2, y - down / 2, x + across / 2, y + down / 2


def boxes_of(rows: Iterable[Row], source: str) -> Boxes:
    """Return rows as boxes that come from `source`, in their order."""
    rows = tuple(rows)
    tracked = [-1 if row.track_id is None else row.track_id for row in rows]
    known = any(row.track_id is not None for row in rows)
    return Boxes(
        np.array([row.xyxy_px for row in rows]),
        np.array([row.score for row in rows]),
        tuple(row.label for row in rows),
        np.array(tracked, np.int64) if known else None,
        source,
    )


@dataclass(slots=True)
class ImageRows:
    """The boxes of an image in the order of the file; `problem` says why they cannot be read.

    `frame_uri`: address of the frame that it is a copy of, as our exports tell it.
    `passed_over`: how many annotations are not boxes of one object, by what they are.
    """

    size_hw: tuple[int, int] | None = None
    rows: list[Row] = field(default_factory=list)
    problem: str = ""
    fractions: bool = False
    frame_uri: str = ""
    passed_over: Counter[str] = field(default_factory=Counter)

    def add(self, where: str, read: Callable[..., Row | str], *what: Any) -> None:
        """Take what is read of something; a ValueError, that it cannot be, is the problem."""
        try:
            self.take(read(*what))
        except ValueError as error:
            self.problem = self.problem or f"{where}: {error}"

    def take(self, row: Row | str) -> None:
        """Take a row, or count what there is instead, such as "crowd"."""
        if isinstance(row, str):
            self.passed_over[row] += 1
        else:
            self.rows.append(row)

    def tell(self, passed_over: PassedOver) -> None:
        """Add what was passed over here to what the file has of it."""
        for what, count in self.passed_over.items():
            passed_over.add(what, count=count)

    def boxes(self, source: str) -> Boxes:
        """Return them.

        Raises:
            BadBoxesError: one of them cannot be read.

        """
        if self.problem:
            raise BadBoxesError(self.problem)
        tracks = Counter(row.track_id for row in self.rows if row.track_id is not None)
        for track_id, count in tracks.most_common(1):
            if count > 1:
                raise BadBoxesError(
                    f"{count} boxes have the track id {track_id}, which is that of one object: "
                    "give every object of a picture an id of its own, or none"
                )
        return boxes_of(self.rows, source)


@dataclass(frozen=True)
class Rows:
    """An import that was read as a whole.

    Attributes:
        images: their names and rows; a name may be there twice.
        classes: that it declares, with boxes or without.
        counted_frames: where images are the numbers of frames: how many of these there are, 0 if
            unknown.

    """

    images: tuple[tuple[str, ImageRows], ...]
    classes: tuple[str, ...] = ()
    counted_frames: int | None = None


def in_fractions(rows: Iterable[Row]) -> bool:
    """Whether boxes that should be in pixels are in fractions of their picture."""
    sides = [side for row in rows for side in row.xyxy_px]
    return any(side % 1 for side in sides) and all(0 <= side <= _WHOLE_PICTURE for side in sides)


def _is_beyond(row: Row, size_hw: tuple[int, int]) -> bool:
    """Whether a box reaches out of its picture by more than the pixel that writers round."""
    left, top, right, bottom = row.xyxy_px
    return min(left, top) < -1 or right > size_hw[1] + 1 or bottom > size_hw[0] + 1


@dataclass(frozen=True)
class Entry:
    """The boxes of one image.

    Attributes:
        name: of the image, or of the file of its boxes.
        parents, stem: what of it the image's address has to hold.
        file_name: its last part, which of two images with one stem is the one.
        read: returns the boxes, whose source is the text given.
        size_hw: of the image that they were made on, None if unknown.
        fractions: they are in fractions of the picture, not in pixels.
        empty: there is none: a list may name pictures that show nothing.
        version: of the remote file that they are read from; "" where reading them costs nothing.
        frame_uri: address of the frame that the image is a copy of, "" if unknown.

    """

    name: str
    parents: tuple[str, ...]
    stem: str
    file_name: str
    read: Callable[[str], Boxes]
    size_hw: tuple[int, int] | None = None
    fractions: bool = False
    empty: bool = False
    version: str = ""
    frame_uri: str = ""

    def digest(self) -> str:
        """Return what changes with these boxes, and with none of another image."""
        if self.version:
            return f"{self.name}\0{self.version}"
        try:
            boxes = self.read("")
        except AutolabelError as error:
            return f"{self.name}\0{error}"
        tracks = None if boxes.track_ids is None else boxes.track_ids.tolist()
        rows = (boxes.xyxy_px.tolist(), boxes.scores.tolist(), boxes.labels, tracks)
        return repr((self.name, self.size_hw, self.fractions, rows))


def entry_of(path: str, read: Callable[[str], Boxes], **known: Any) -> Entry:
    """Make the entry of an image, or of the file of its boxes, at this path of an import."""
    folder, _, name = plain_name(path).rstrip("/").rpartition("/")
    stem, _, suffix = name.rpartition(".")
    stem = stem if stem and suffix else name  # as pathlib, which takes ten times as long
    return Entry(path, _naming(folder), stem, name, read, **known)


def is_kitti_folder(name: str) -> bool:
    """Whether a folder has a name of KITTI's labels, such as `label_02`."""
    return _OF_CAMERA.match(name) is not None


@functools.lru_cache(maxsize=256)  # one folder after the other, with thousands of files each
def _naming(folder: str) -> tuple[str, ...]:
    """Folders that name something; KITTI's `label_02` has the boxes of its `image_02`."""
    parts = [_OF_CAMERA.sub(r"image_\1", part) for part in PurePosixPath(folder).parts]
    return tuple(part for part in parts if part.lower() not in _WRAPPERS)


_NUMBERED = re.compile(r"(?:frame[_-]?)?0*(\d{1,18})")
_CVATS_NAME = re.compile(r"frame_\d{6,18}")  # of the pictures that it makes of a video
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
        passed_over: what was met and is no box of one object; text files are read one by one.
        counted_frames: as of `Rows`.
        form: of the lines of YOLO's files, of which nothing in them tells it.
        beyond: how many boxes reach out of their picture, where its size is told.

    """

    where: str
    stamp: str
    version: str
    entries: tuple[Entry, ...]
    class_counts: Mapping[str, int] | None = None
    passed_over: PassedOver = field(default_factory=PassedOver)
    counted_frames: int | None = None
    form: str = ""
    beyond: int = 0
    # By name without extension, those that number a frame by that too, and by last folder, or "":
    # a name may be there for every drive.
    _by_name: dict[str | int, dict[str, list[Entry]]] = field(default_factory=dict, repr=False)
    _numbers: dict[str, set[int]] = field(default_factory=dict, repr=False)  # by last folder
    _copies: dict[str, Entry] = field(default_factory=dict, repr=False)  # by their frame's address

    def __post_init__(self) -> None:
        for entry in self.entries:
            if entry.frame_uri:
                self._copies[handed_on(entry.frame_uri)] = entry
            folder = entry.parents[-1] if entry.parents else ""
            names: list[str | int] = [entry.stem]
            number = _NUMBERED.fullmatch(entry.stem)
            if number:  # for frames of videos, which have no names
                names.append(int(number[1]))
                self._numbers.setdefault(folder, set()).add(int(number[1]))
            for name in names:
                self._by_name.setdefault(name, {}).setdefault(folder, []).append(entry)

    @staticmethod
    def of_rows(rows: Rows, where: str, stamp: str) -> ImportedBoxes:
        """Return boxes that were read as a whole.

        Raises:
            AutolabelError: they are in fractions.

        """
        images = [image for _, image in rows.images]
        if in_fractions(row for image in images if not image.fractions for row in image.rows):
            raise AutolabelError(
                f"{where} has its boxes in fractions of the pictures: they are read in pixels, so "
                "multiply them by width and height, or write YOLO's text files"
            )
        entries = tuple(
            entry_of(
                name, image.boxes, size_hw=image.size_hw, fractions=image.fractions,
                empty=not image.rows and not image.problem, frame_uri=image.frame_uri,
            )
            for name, image in rows.images
        )  # fmt: skip
        counts = Counter(dict.fromkeys(rows.classes, 0))
        counts.update(row.label for image in images for row in image.rows)
        passed_over = PassedOver(where)
        for image in images:
            image.tell(passed_over)
        beyond = sum(
            _is_beyond(row, image.size_hw) for image in images if image.size_hw
            for row in image.rows
        )  # fmt: skip
        return ImportedBoxes(
            where, stamp, _digest_of_entries(entries), entries, counts, passed_over,
            rows.counted_frames, beyond=beyond,
        )  # fmt: skip

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
        """Entries that fit a frame: of a copy of it, else those that name it and most folders."""
        if copy := self._copies.get(handed_on(frame.uri)):
            return [copy]
        path, number = _place_of(frame)
        if number is None and self.counted_frames is not None:
            named = _number_in_name(frame)
            number = frame.index if named is None else named
        return self._fitting(path.stem if number is None else number, frame, path.name)

    def _fitting(self, name: str | int, footage: Footage, file_name: str = "") -> list[Entry]:
        named = self._by_name.get(name)
        if not named:
            return []
        around = _names_around(footage)
        found = itertools.chain.from_iterable(named[folder] for folder in around & named.keys())
        fitting = [entry for entry in found if around.issuperset(entry.parents)]
        fitting = [entry for entry in fitting if entry.file_name == file_name] or fitting
        most = max((len(entry.parents) for entry in fitting), default=0)
        return [entry for entry in fitting if len(entry.parents) == most]

    def entries_of_video(self, video: VideoRef) -> Iterator[tuple[int, list[Entry]]]:
        """Numbers of selected frames that a video may have, with the entries that fit them."""
        numbers = set[int]().union(*(self._numbers.get(name, ()) for name in _names_around(video)))
        for number in sorted(numbers):
            fitting = self._fitting(number, video) if number in video.selection else []
            if fitting:
                yield number, fitting

    def digest_of(self, footage: Iterable[Footage]) -> str:
        """Return the digest of the boxes that belong to the frames of a sequence.

        Boxes of other sequences do not change it: it is a part of the keys of this one's labels.
        """
        found: dict[str, Entry] = {}
        for frame in footage:
            fitting = [self.entries_of(frame)] if isinstance(frame, FrameRef) else []
            if isinstance(frame, VideoRef):  # not opened yet: all that its frames may have
                fitting = [entries for _, entries in self.entries_of_video(frame)]
            found |= {entry.name: entry for entries in fitting for entry in entries}
        return _digest_of_entries(found[name] for name in sorted(found))


def _digest_of_entries(entries: Iterable[Entry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(entry.digest().encode(errors="surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def _place_of(frame: Footage) -> tuple[PurePosixPath, int | None]:
    """Return the path in an address, unquoted, and the number of a video's frame in it.

    Pictures with names of their own have no number; a video has that of its first frame.
    """
    part = part_of(f"{frame.address}#frame=0" if isinstance(frame, VideoRef) else frame.uri)
    uri = part.path if part else frame.uri
    uri = unquote(uri) if uri.startswith(("http://", "https://")) else uri
    path = PurePosixPath(plain_name(uri))
    return path, None if part is None or part.is_member else part.number


def _number_in_name(frame: FrameRef) -> int | None:
    """Return the number of a picture in its task, where its name is CVAT's or its own place."""
    stem = _place_of(frame)[0].stem
    number = _NUMBERED.fullmatch(stem)
    is_told = number and (_CVATS_NAME.fullmatch(stem) or int(number[1]) == frame.index)
    return int(number[1]) if number and is_told else None


def _names_around(frame: Footage) -> set[str]:
    """Folders that a frame lies in; a video is one for its frames."""
    path, number = _place_of(frame)
    folder = path.parent if number is None else path.with_suffix("")
    return {*folder.parts, frame.camera, frame.sequence_id, ""}


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


# With more box files than that, they are not read to see which classes there are.
MOST_READ = 500
_SHOWN = 5


@dataclass
class Matching:
    """Imported boxes and the frames that they were found to belong to.

    Attributes:
        imported: the boxes.
        frames: seen so far; those of videos when these are open (`open_videos`).
        frames_without: how many of those have no entry; the first few are in `examples`.

    """

    imported: ImportedBoxes
    frames: int = 0
    frames_without: int = 0
    examples: list[str] = field(default_factory=list)
    _frame_of: dict[str, str] = field(default_factory=dict)  # an entry's name: a frame's address

    def add(self, footage: Iterable[Footage]) -> None:
        """Find the entries of more frames.

        Raises:
            AutolabelError: an entry belongs to two frames.

        """
        for frame in footage:
            if isinstance(frame, VideoRef):
                for index, entries in self.imported.entries_of_video(frame):
                    self._take(entries, f"{frame.address}#frame={index}")
                continue
            entries = self.imported.entries_of(frame)
            self._take(entries, frame.uri)
            self._count(frame, entries)

    def _count(self, frame: FrameRef, entries: list[Entry]) -> None:
        self.frames += 1
        if entries:
            return
        self.frames_without += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(storage.redact(frame.uri))

    def open_videos(self, frames: Iterable[FrameRef]) -> None:
        """Count the frames that opened videos have; boxes of any other number have no frame."""
        there = {frame.uri: frame for frame in frames if "#frame=" in frame.uri}
        opened = {uri.rpartition("#frame=")[0] for uri in there}
        for name, uri in list(self._frame_of.items()):
            if uri.rpartition("#frame=")[0] in opened and uri not in there:
                del self._frame_of[name]
        for frame in there.values():
            self._count(frame, self.imported.entries_of(frame))

    def with_boxes(self, sequence: FoundSequence) -> FoundSequence:
        """Find the entries of a sequence's frames; returns it with the digest of its boxes.

        Raises:
            AutolabelError: an entry belongs to two frames, or it is not clear which frame is
                which of those that the boxes count.

        """
        self.add(sequence.frames)
        if self.imported.counted_frames is not None:
            self._refuse_other_count(sequence.frames, self.imported.counted_frames)
        return replace(sequence, boxes=self.imported.digest_of(sequence.frames))

    def _refuse_other_count(self, footage: Iterable[Footage], counted_frames: int) -> None:
        """Refuse pictures with other numbers in their names, unless all were counted."""
        frames = [
            frame for frame in footage if isinstance(frame, FrameRef) and not part_of(frame.uri)
        ]
        others = [frame for frame in frames if _number_in_name(frame) is None]
        if others and max(frame.index for frame in frames) + 1 != counted_frames:
            raise AutolabelError(
                f"{self.imported.where} counts the pictures of a task, of which it has "
                f"{counted_frames or 'an unknown number'}, from 0, and the names of "
                f"{len(frames)} such as {storage.redact(others[0].uri)} are other numbers: label "
                "the task's pictures, all and no others, or export 'CVAT for images', which names "
                "them"
            )

    def _take(self, entries: list[Entry], uri: str) -> None:
        for entry in entries:
            other = self._frame_of.setdefault(entry.name, uri)
            if other != uri:
                raise AutolabelError(
                    f"{self.imported.where}: the boxes {entry.name} fit more than one frame: "
                    f"{storage.redact(other)} and {storage.redact(uri)}; name the folder of the "
                    "frame in the name of the boxes (such as CAM_FRONT/0001), label the folders "
                    "one by one, or give pictures names that differ in more than their endings"
                )

    def unmatched(self) -> list[str]:
        """Names of entries with boxes that belong to no frame seen."""
        entries = self.imported.entries
        return [
            entry.name for entry in entries if not entry.empty and entry.name not in self._frame_of
        ]

    def refuse_nothing(self, classes: Collection[str]) -> None:
        """Refuse to label nothing at all; call it when every frame has been seen.

        Raises:
            NothingFoundError: no entry belongs to any frame.
            AutolabelError: none has a box of these classes.

        """
        if not self._frame_of:
            frame = f" beside {self.examples[0]}" if self.examples else ""
            raise NothingFoundError(
                f"{self.imported.where}: none of its images is among the frames of the sources "
                f"({self.imported.entries[0].name}{frame}); names must be equal, and name only "
                "folders that the frames lie in, such as CAM_FRONT/0001.jpg; frames of a video are "
                "named by their number from 0, such as clip/000000 (clip_1, from 1, is not read)"
            )
        if classes:
            self._refuse_classes(set(classes))

    def _refuse_classes(self, wanted: set[str]) -> None:
        counts, mistakes = self.imported.class_counts, set[str]()
        if counts is None:
            matched = [entry for entry in self.imported.entries if entry.name in self._frame_of]
            if len(matched) > MOST_READ:
                return
            counts = Counter[str]()
            for entry in matched:
                with contextlib.suppress(AutolabelError):  # it has no classes
                    counts.update(entry.read("").labels)
                if wanted & counts.keys():
                    return
        else:  # a class that the file knows may have no box in it; one that it does not may not
            mistakes = wanted - counts.keys()
        unknown = {name for name in wanted if not counts.get(name)}
        if mistakes or unknown == wanted:
            every = (
                f"{label} ({counted(counts[label], 'box', 'boxes')})" for label in sorted(counts)
            )
            raise AutolabelError(
                f"--classes {','.join(sorted(unknown))}: {self.imported.where} has no such boxes; "
                f"its classes are: {', '.join(every) or 'none'}"
            )

    def lines(self) -> Iterator[str]:
        """Say what does not fit, and what was told from the boxes alone, for a person."""
        if self.imported.form:
            yield f"boxes: lines are read as {self.imported.form}"
        if self.imported.beyond:
            yield (
                f"boxes that reach beyond their picture: {self.imported.beyond}; they are cut at "
                "its edge (COCO's bbox is x, y, width, height)"
            )
        without, unmatched = self.frames_without, self.unmatched()
        if without:
            some = _some(self.examples, without)
            yield f"frames without boxes: {without} of {self.frames} ({some})"
        if unmatched:
            some = _some(unmatched[:_SHOWN], len(unmatched))
            every = counted(len(self.imported.entries), "image")
            yield f"boxes without a frame: those of {len(unmatched)} of {every} ({some})"

    def as_json(self) -> dict[str, Any]:
        """Say what does not fit, as plain values."""
        unmatched = self.unmatched()
        return {
            "frames_without_boxes": self.frames_without,
            "boxes_without_frame": len(unmatched),
            "first_boxes_without_frame": unmatched[:_SHOWN],
        }


def _some(names: list[str], count: int) -> str:
    return ", ".join(names) + (", ..." if count > len(names) else "")
