"""Boxes that somebody else made, opened: which form they have, and who reads it.

They are in COCO json, CVAT's XML, KITTI's label files, tables of nuImages and T4, or text files.

Text: one file per image, named like it, each line `label score x1 y1 x2 y2` in original pixels.
YOLO's text: the same in fractions, where a file of class names is given.
COCO: `images`, `annotations` with `bbox` in x, y, width, height, `categories`; segmentations are
ignored; `score` and track ids are taken where they are. The order of the file is kept.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.cvat_boxes import read_cvat
from tasks.boxes.imported import ImportedBoxes
from tasks.boxes.json_boxes import read_coco, read_nuscenes
from tasks.boxes.rows import Entry, ImageRows, Rows, entry_of, is_kitti_folder
from tasks.boxes.text_boxes import (
    is_tracking_line,
    parse_text,
    parse_yolo,
    read_names,
    read_tracking,
)
from tasks.frames.listing import File, stat_file, walk
from tasks.frames.patterns import suffix_of
from tasks.frames.readers.nuscenes import NuScenes
from tasks.frames.readers.protocol import Place
from tasks.store import storage

READERS = {".json": read_coco, ".xml": read_cvat}


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
    suffix = suffix_of(file.name) if file else ".txt"
    stamp = f"imported:{PurePosixPath(path_or_url.rstrip('/')).name}"
    names: tuple[str, ...] = ()
    if names_uri:
        names = read_names(storage.read_bytes(names_uri), storage.redact(names_uri))
    if names and suffix != ".txt":
        raise AutolabelError(f"{where} names its classes: leave out --box-names")
    rows: Rows | None = None
    texts: list[tuple[str, File]] = []
    if file and suffix in READERS:
        rows = READERS[suffix](storage.read_bytes(file.uri), where)
    elif suffix != ".txt":
        raise AutolabelError(f"{where} is neither COCO's .json nor CVAT's .xml nor .txt boxes")
    elif file is None and NuScenes().fits(Place(path_or_url)):
        rows = read_nuscenes(path_or_url)
    else:
        texts = [(file.name, file)] if file else _text_files(path_or_url, names_uri)
        rows = _tracking(texts)
    if rows is not None:
        imported = ImportedBoxes.of_rows(rows, where, stamp)
    else:
        entries = tuple(_text_entry(path, one, names) for path, one in texts)
        versions = "\n".join([*names, *(f"{path} {one.etag}" for path, one in texts)])
        version = hashlib.sha256(versions.encode()).hexdigest()
        imported = ImportedBoxes(where, stamp, version, entries)
    if not imported.entries:
        raise AutolabelError(f"{where} holds no boxes: no .txt files and no images")
    return imported


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


def _tracking(files: list[tuple[str, File]]) -> Rows | None:
    """Read files of KITTI's tracking labels; None where the first line of the first is none."""
    lines = (line for _, file in files[:1] for line in _text(file).splitlines() if line.strip())
    if not is_tracking_line(next(lines, "").split()):
        return None
    images: dict[str, ImageRows] = {}
    for name, file in files:
        images |= read_tracking(_text(file), name[: -len(".txt")], storage.redact(file.uri))
    return Rows(tuple(images.items()))


def _text(file: File) -> str:
    """Text of a file; reading its boxes refuses what is no text."""
    return storage.read_bytes(file.uri).decode("utf-8", "replace")


def _text_entry(path: str, file: File, classes: tuple[str, ...]) -> Entry:
    # A local file is read where its time might be all that has changed.
    version = "" if storage.is_local(file.uri) else "\n".join((file.etag, *classes))

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

    return entry_of(path, read, fractions=bool(classes), version=version)
