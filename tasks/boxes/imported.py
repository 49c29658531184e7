"""Boxes that somebody else made, instead of a detector.

They are in COCO json, CVAT's XML, KITTI's label files, tables of nuImages and T4, or text files.

Text: one file per image, named like it, each line `label score x1 y1 x2 y2` in original pixels.
YOLO's text: the same in fractions, where a file of class names is given.
COCO: `images`, `annotations` with `bbox` in x, y, width, height, `categories`; segmentations are
ignored; `score` and track ids are taken where they are. The order of the file is kept.

A box file belongs to an image when their names without extension are equal and every folder that
the box file names below its root is in the image's address, so that `CAM_BACK/0001.txt` never
labels `CAM_FRONT/0001.jpg`. Frames of videos go by their number. That no box file belongs to two
frames is seen to where a run is planned (`tasks.boxes.matching`).

Boxes are in pixels of the frame as displayed. A frame that its EXIF orientation turns is labeled
where the size that COCO tells says which way its boxes are, and is a failure elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.coco_boxes import BadBoxesError, CocoFile, read_coco
from tasks.boxes.cvat_boxes import read_cvat
from tasks.boxes.displayed import as_displayed
from tasks.boxes.entry import Entry, entry_of, is_kitti_folder
from tasks.boxes.kitti_boxes import is_tracking_line, read_tracking
from tasks.boxes.nuscenes_boxes import read_nuscenes
from tasks.boxes.rows import ImageRows, Rows
from tasks.boxes.text_boxes import decoded, parse_text, parse_yolo, read_names
from tasks.frames.images import BadImageError
from tasks.frames.listing import File, stat_file, walk
from tasks.frames.parts import part_of
from tasks.frames.patterns import suffix_of
from tasks.frames.readers.nuscenes import NuScenes
from tasks.frames.readers.protocol import Place
from tasks.store import storage
from tasks.types import Footage, FrameFailure, FrameRef, VideoRef

_NUMBERED = re.compile(r"(?:frame[_-]?)?0*(\d+)")
_SHOWN_NAMES = 5
_READERS = 16


@dataclass(frozen=True)
class ImportedBoxes:
    """Imported boxes, looked up by frame.

    Attributes:
        where: address of the import, for messages.
        stamp: name and content of the import; part of every key and on every box.
        entries: all of them.
        class_counts: boxes of every class; None for text files, which are read one by one.
        notes: what of it belongs to no image, in words.

    """

    where: str
    stamp: str
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
        (entry,) = found
        try:
            boxes = entry.read(self.stamp)
            if len(boxes) and frame.local_path:
                boxes = as_displayed(boxes, entry.size_hw, frame, fractions=entry.fractions)
        except BadBoxesError as error:
            return FrameFailure.of(frame, "boxes", str(error))
        except BadImageError as error:
            return FrameFailure.of(frame, "decode", str(error))
        return boxes

    def entries_of(self, frame: FrameRef) -> list[Entry]:
        """Entries that fit a frame; those that name most of its folders."""
        index = _number_of(frame)
        if index is not None:
            around = _around(frame)
            found = [self._by_number.get(folder, {}).get(index, []) for folder in around]
        else:
            named = self._by_stem.get(PurePosixPath(_path(frame)).stem)
            if not named:
                return []
            around = _around(frame)
            found = [named[folder] for folder in around & named.keys()]
        return _fitting(itertools.chain.from_iterable(found), around)

    def of_other_folders(self, frame: FrameRef) -> Entry | None:
        """Return an entry that has a frame's name, and names folders that are not the frame's."""
        named = self._by_stem.get(PurePosixPath(_path(frame)).stem, {})
        return next(itertools.chain.from_iterable(named.values()), None)

    def entries_of_video(self, video: VideoRef) -> Iterator[tuple[int, list[Entry]]]:
        """Numbers of frames that a video may have, with the entries that fit them."""
        around = _around(video)
        for index, found in sorted(self._numbered(around).items()):
            fitting = _fitting(found, around) if index in video.selection else []
            if fitting:
                yield index, fitting

    def _numbered(self, around: set[str]) -> dict[int, list[Entry]]:
        found: dict[int, list[Entry]] = {}
        for folder in around & self._by_number.keys():
            for index, entries in self._by_number[folder].items():
                found.setdefault(index, []).extend(entries)
        return found

    def classes_in(self, entries: Sequence[Entry]) -> Iterator[set[str]]:
        """Classes of the boxes of entries, read several at a time; what is unreadable has none."""
        with ThreadPoolExecutor(_READERS, "read-boxes") as pool:
            for start in range(0, len(entries), 4 * _READERS):
                yield from pool.map(self._classes, entries[start : start + 4 * _READERS])

    def _classes(self, entry: Entry) -> set[str]:
        try:
            return set(entry.read(self.stamp).labels)
        except (BadBoxesError, AutolabelError):
            return set()


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


def chosen_boxes(boxes: Boxes, classes: Collection[str], min_score: float) -> Boxes:
    """Return the boxes of these classes (all when empty) with at least this score, in order."""
    if not classes and min_score <= 0:
        return boxes
    known = np.isin(boxes.labels, list(classes)) if classes else np.ones(len(boxes), bool)
    keep = np.flatnonzero(known & (boxes.scores >= min_score))
    tracks = None if boxes.track_ids is None else boxes.track_ids[keep]
    labels = tuple(boxes.labels[row] for row in keep)
    return Boxes(boxes.xyxy_px[keep], boxes.scores[keep], labels, tracks, boxes.source)


def import_boxes(path_or_url: str, names_uri: str = "") -> ImportedBoxes:
    """Open imported boxes.

    Text files are read when a frame asks for them.

    Args:
        path_or_url: a COCO .json, CVAT's .xml, a .txt file or a folder of them, or a dataset in the
            form of nuImages or T4.
        names_uri: names of the classes of YOLO's text files.

    Raises:
        AutolabelError: missing, empty, or not of these forms; names the file.

    """
    file, where = stat_file(path_or_url), storage.redact(path_or_url)
    listed = storage.read_bytes(names_uri) if names_uri else b""
    names = read_names(listed, storage.redact(names_uri)) if names_uri else ()
    if file is not None and not file.name.lower().endswith(".txt") and names:
        raise AutolabelError(f"{where} names its classes: leave out --box-names")
    name = PurePosixPath(path_or_url.rstrip("/")).name

    def imported(entries: list[Entry], identity: str, **more: Any) -> ImportedBoxes:
        if not entries:
            raise AutolabelError(f"{where} holds no boxes: no .txt files and no images")
        digest = hashlib.sha256(identity.encode() + listed).hexdigest()[:16]
        return ImportedBoxes(where, f"imported:{name}@{digest}", tuple(entries), **more)

    if file is None:
        rows = _of_folder(path_or_url, names_uri)
        if not isinstance(rows, Rows):
            return imported(*_text_folder(rows, names))
        return imported(rows.entries(), rows.digest(), class_counts=rows.counts(), notes=rows.notes)
    suffix = suffix_of(file.name)
    if suffix == ".txt":
        if _is_tracking(file):
            found = read_tracking(_text(file), PurePosixPath(file.name).stem, where)
            rows = Rows(found)
            return imported(rows.entries(), rows.digest(), class_counts=rows.counts())
        return imported([_text_entry(file.name, file, names)], file.etag)
    if suffix not in {".json", ".xml"}:
        raise AutolabelError(f"{where} is neither COCO's .json nor CVAT's .xml nor .txt boxes")
    data = storage.read_bytes(file.uri)
    identity = hashlib.sha256(data).hexdigest()
    if suffix == ".xml":
        rows = read_cvat(data, where)
        return imported(rows.entries(), identity, class_counts=rows.counts())
    coco = read_coco(data, where)
    return imported(_coco_entries(coco), identity, class_counts=coco.counts(), notes=coco.notes)


def _of_folder(uri: str, names_uri: str) -> Rows | list[tuple[str, File]]:
    """Read a folder whose files hold the boxes of many images; return the files of another one."""
    if NuScenes().fits(Place(uri)):
        return read_nuscenes(uri)
    files = _text_files(uri, names_uri)
    return _tracking_folder(files) if files and _is_tracking(files[0][1]) else files


def _text_files(uri: str, but: str) -> list[tuple[str, File]]:
    """Return the text files below a folder by their paths from it, sorted; without the one named.

    A long run may have hundreds of thousands of them: they are listed once. Beside KITTI's folders
    of labels lie others of text files, which have no boxes.
    """
    found = [
        ("/".join((*names, file.name)), file)
        for names, files in walk(uri)
        for file in files
        if file.name.lower().endswith(".txt") and file.uri != but
    ]
    labels = [one for one in found if any(map(is_kitti_folder, one[0].split("/")[:-1]))]
    return sorted(labels or found, key=lambda one: one[0])


def _tracking_folder(files: list[tuple[str, File]]) -> Rows:
    images: dict[str, ImageRows] = {}
    for name, file in files:
        images |= read_tracking(_text(file), name[: -len(".txt")], storage.redact(file.uri))
    return Rows(images)


def _is_tracking(file: File) -> bool:
    """Whether the first line of a file is one of KITTI's tracking labels."""
    first = next((line for line in _text(file).splitlines() if line.strip()), "")
    return is_tracking_line(first.split())


def _text(file: File) -> str:
    """Text of a file; what is no text is seen to where its boxes are read."""
    data = storage.read_bytes(file.uri)
    try:
        return decoded(data, file.uri)
    except BadBoxesError:
        return data.decode("utf-8", "replace")


def _coco_entries(coco: CocoFile) -> list[Entry]:
    return [
        entry_of(
            image.name,
            lambda stamp, image=image: coco.boxes_of(image, stamp),  # type: ignore[misc]
            image.size_hw,
            empty=not image.annotations,
        )
        for image in coco.images
    ]


def _text_folder(
    files: list[tuple[str, File]], classes: tuple[str, ...]
) -> tuple[list[Entry], str]:
    identity = "\n".join(f"{name} {file.etag}" for name, file in files)
    return [_text_entry(name, file, classes) for name, file in files], identity


def _text_entry(path: str, file: File, classes: tuple[str, ...]) -> Entry:
    def read(stamp: str) -> Boxes:
        data, now = storage.read_bytes(file.uri), stat_file(file.uri)
        if now is None or now.etag != file.etag:
            raise AutolabelError(
                f"{storage.redact(file.uri)} was replaced since the run began, and its boxes would "
                "be stored as the previous ones: run again"
            )
        if classes:
            return parse_yolo(data, storage.redact(file.uri), stamp, classes)
        return parse_text(data, storage.redact(file.uri), stamp)

    return entry_of(path, read, fractions=bool(classes))
