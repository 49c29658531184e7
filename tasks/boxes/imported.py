"""Boxes that somebody else made, instead of a detector: COCO json or text files.

Text: one file an image, named like it, each line `label score x1 y1 x2 y2` in original pixels.
COCO: `images`, `annotations` with `bbox` in x, y, width, height, `categories`; segmentations are
ignored; `score` and track ids are taken where they are. The order of the file is kept.

A box file belongs to an image when their names without extension are equal and every folder that
the box file names below its root is in the image's address, so that `CAM_BACK/0001.txt` never
labels `CAM_FRONT/0001.jpg`. Frames of videos go by their number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from sam2_core.types import AutolabelError, Boxes
from tasks.frames.images import failure
from tasks.frames.listing import File, stat_file, walk
from tasks.store import storage
from tasks.types import FrameFailure, FrameRef

# Folders that only say what is in them.
_WRAPPERS = frozenset(
    [
        "images",
        "image",
        "imgs",
        "img",
        "frames",
        "data",
        "rgb",
        "color",
        "labels",
        "label",
        "boxes",
        "bboxes",
        "annotations",
    ]
)
_VIDEO_FRAME = re.compile(r"#frame=(\d+)$")
_NUMBERED = re.compile(r"(?:frame[_-]?)?0*(\d+)")
_SHOWN_NAMES = 5


class BadBoxesError(ValueError):
    """Boxes of one image that cannot be read; the message is the reason."""


@dataclass(frozen=True)
class Entry:
    """The boxes of one image: its name, where a mistake would be, and how to read them."""

    name: str
    parents: tuple[str, ...]
    stem: str
    read: Callable[[str], Boxes]


@dataclass(frozen=True)
class ImportedBoxes:
    """Imported boxes, looked up by frame.

    Attributes:
        stamp: name and content of the import; part of every key and on every box.
        entries: by (last folder or "", image name without extension).
        numbered: those whose name is a number, for the frames of videos, which have no names.

    """

    stamp: str
    entries: Mapping[tuple[str, str], Sequence[Entry]]
    numbered: Mapping[tuple[str, int], Sequence[Entry]]

    def of(self, frame: FrameRef) -> Boxes | FrameFailure:
        """Boxes of a frame in the order of the file, none when the import has none for it.

        Raises:
            AutolabelError: its file cannot be read now, or was replaced: no answer about the frame.

        """
        found = self._match(frame)
        if not found:
            return Boxes.empty(self.stamp)
        if len(found) > 1:
            names = ", ".join(entry.name for entry in found[:_SHOWN_NAMES])
            return failure(frame, "boxes", f"several imported images fit this frame: {names}")
        try:
            return found[0].read(self.stamp)
        except BadBoxesError as error:
            return failure(frame, "boxes", str(error))

    def unmatched(self, frames: Iterable[FrameRef]) -> list[str]:
        """Names of imported images that none of the frames is."""
        matched = {entry.name for frame in frames for entry in self._match(frame)}
        every = [entry.name for entries in self.entries.values() for entry in entries]
        return [name for name in every if name not in matched]

    def _match(self, frame: FrameRef) -> list[Entry]:
        number = _VIDEO_FRAME.search(frame.uri)
        if number:
            video = PurePosixPath(frame.uri[: number.start()])
            around = {*video.with_suffix("").parts, frame.camera, frame.sequence_id, ""}
            keys = [(folder, int(number[1])) for folder in around]
            found = [entry for key in keys for entry in self.numbered.get(key, ())]
        else:
            path = PurePosixPath(unquote(frame.uri) if frame.uri.startswith("http") else frame.uri)
            around = {*path.parent.parts, frame.camera, frame.sequence_id, ""}
            names = [(folder, path.stem) for folder in around]
            found = [entry for name in names for entry in self.entries.get(name, ())]
        fitting = [entry for entry in found if set(entry.parents) <= around]
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


def import_boxes(path_or_url: str) -> ImportedBoxes:
    """Open imported boxes: a COCO .json, a .txt file, or a folder of .txt files.

    Text files are read when a frame asks for them.

    Raises:
        AutolabelError: missing, empty, or not of these forms; names the file.

    """
    file = stat_file(path_or_url)
    if file is None:
        entries, identity = _text_folder(path_or_url)
    elif file.name.lower().endswith(".json"):
        data = storage.read_bytes(file.uri)
        entries, identity = _coco(data, path_or_url), hashlib.sha256(data).hexdigest()
    elif file.name.lower().endswith(".txt"):
        entries, identity = [_text_entry((), file)], file.etag
    else:
        raise AutolabelError(f"{path_or_url} is neither a COCO .json nor .txt boxes")
    if not entries:
        raise AutolabelError(f"{path_or_url} holds no boxes: no .txt files and no images")
    by_stem: dict[tuple[str, str], list[Entry]] = {}
    by_number: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        folder = entry.parents[-1] if entry.parents else ""
        by_stem.setdefault((folder, entry.stem), []).append(entry)
        number = _NUMBERED.fullmatch(entry.stem)
        if number:
            by_number.setdefault((folder, int(number[1])), []).append(entry)
    name = PurePosixPath(path_or_url.rstrip("/")).name
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return ImportedBoxes(f"imported:{name}@{digest}", by_stem, by_number)


def _entry(path: str, read: Callable[[str], Boxes]) -> Entry:
    pure = PurePosixPath(path.replace("\\", "/"))
    parents = tuple(part for part in pure.parent.parts if part.lower() not in _WRAPPERS)
    return Entry(path, parents, pure.stem, read)


def _text_folder(url: str) -> tuple[list[Entry], str]:
    found = [
        ("/".join((*names, file.name)), file)
        for names, files in walk(url)
        for file in files
        if file.name.lower().endswith(".txt")
    ]
    found.sort(key=lambda one: one[0])
    identity = "\n".join(f"{name} {file.etag}" for name, file in found)
    return [_text_entry(name.split("/")[:-1], file) for name, file in found], identity


def _text_entry(names: Iterable[str], file: File) -> Entry:
    def read(stamp: str) -> Boxes:
        data, now = storage.read_bytes(file.uri), stat_file(file.uri)
        if now is None or now.etag != file.etag:
            raise AutolabelError(
                f"{storage.redact(file.uri)} was replaced since the run began, and its boxes would "
                "be stored as those of before: run again"
            )
        return parse_text(data, storage.redact(file.uri), stamp)

    return _entry("/".join((*names, file.name)), read)


def parse_text(data: bytes, where: str, source: str) -> Boxes:
    """Read lines of `label score x1 y1 x2 y2`; a label may hold spaces.

    Raises:
        BadBoxesError: names the file and every line that is not of this form.

    """
    rows: list[tuple[str, list[float]]] = []
    wrong: list[str] = []
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = line.rsplit(maxsplit=5)
        try:
            if len(fields) != 6:
                raise ValueError
            rows.append((fields[0].strip(), [float(field) for field in fields[1:]]))
        except ValueError:
            wrong.append(
                f"{where}:{number}: expected `label score x1 y1 x2 y2`, found {line!r:.80}"
            )
    if wrong:
        more = f" (and {len(wrong) - 3} more lines)" if len(wrong) > 3 else ""
        raise BadBoxesError("; ".join(wrong[:3]) + more)
    return Boxes(
        [values[1:] for _, values in rows],  # type: ignore[arg-type]
        [values[0] for _, values in rows],  # type: ignore[arg-type]
        tuple(label for label, _ in rows),
        None,
        source,
    )


def _coco(data: bytes, where: str) -> list[Entry]:
    try:
        content = json.loads(data)
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        categories = {one["id"]: str(one["name"]) for one in content.get("categories", ())}
        annotations: dict[Any, list[tuple[int, dict[str, Any]]]] = {image: [] for image in names}
        strangers = []
        for number, one in enumerate(content["annotations"]):
            if one.get("image_id") in annotations:
                annotations[one["image_id"]].append((number, one))
            else:
                strangers.append(number)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AutolabelError(
            f"{where} is not COCO json (images, annotations, categories): {error!r}"
        ) from error
    if strangers:
        raise AutolabelError(
            f"{where}: {len(strangers)} annotations belong to no image, the first is number "
            f"{strangers[0]}"
        )

    def reader(image: Any) -> Callable[[str], Boxes]:
        return lambda stamp: _coco_boxes(annotations[image], categories, where, stamp)

    return [_entry(name, reader(image)) for image, name in names.items()]


def _coco_boxes(
    annotations: list[tuple[int, dict[str, Any]]],
    categories: dict[Any, str],
    where: str,
    source: str,
) -> Boxes:
    boxes, scores, labels, tracks = [], [], [], []
    for number, one in annotations:
        try:
            x, y, width, height = (float(value) for value in one["bbox"])
            boxes.append((x, y, x + width, y + height))
            scores.append(float(one.get("score", 1.0)))
            labels.append(categories[one["category_id"]])
            tracks.append(_track_id(one))
        except (ValueError, KeyError, TypeError) as error:
            raise BadBoxesError(f"{where}: annotation number {number}: {error!r}") from error
    tracked = [-1 if track is None else track for track in tracks]
    known = any(track is not None for track in tracks)
    return Boxes(boxes, scores, tuple(labels), tracked if known else None, source)  # type: ignore[arg-type]


def _track_id(annotation: dict[str, Any]) -> int | None:
    attributes = annotation.get("attributes") or {}
    for name in ("track_id", "instance_id", "tracking_id"):
        value = annotation.get(name, attributes.get(name))
        if value is not None:
            return int(value)
    return None
