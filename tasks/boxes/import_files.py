"""Boxes that somebody else made, opened: which form they have, and who reads it.

They are in COCO json, CVAT's XML, KITTI's label files, tables of nuImages and T4, or text files.

Text: one file per image, named like it, each line `label score x1 y1 x2 y2` in original pixels.
Lines that begin with "#" are comments.

KITTI's object benchmark has a file an image, each line `type truncated occluded alpha x1 y1 x2 y2
h w l x y z ry [score]`; its tracking benchmark a file a sequence, lines with `frame track_id`
before that. `DontCare` is no object. (devkits of both benchmarks, readme.txt)

YOLO's are in fractions: `class x y width height [score]`, where `x` and `y` are the centre's; a
line of a polygon (`class x1 y1 x2 y2 x3 y3 ...`) stands for the box around it. Classes are numbers,
and a file beside has their names.
"""

import codecs
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.annotations import read_coco, read_cvat, read_nuscenes
from tasks.boxes.imported import (
    WHOLE_NUMBER,
    BadBoxesError,
    Entry,
    ImageRows,
    ImportedBoxes,
    Row,
    Rows,
    boxes_of,
    entry_of,
    is_kitti_folder,
    read_as,
)
from tasks.frames.identity import suffix_of
from tasks.frames.listing import File, Folder, stat_file, walk
from tasks.frames.readers.nuscenes import NuScenes
from tasks.store import storage
from tasks.wording import counted

_FIELDS = 15  # of a line of KITTI's object benchmark
# A box may reach over the picture's edge; what is far beyond is in pixels.
_MOST = 2.0
_PLAIN = (str, int, float)  # types of a class's name in YAML


def read_names(data: bytes, where: str) -> tuple[str, ...]:
    """Read the names of classes: one a line (classes.txt, obj.names), or `names` of a data.yaml.

    Raises:
        AutolabelError: it has none; names the file.

    """
    text = decoded(data, where)
    names = tuple(map(str.strip, text.rstrip().splitlines()))
    if where.lower().endswith((".yaml", ".yml")):
        names = _from_yaml(text, where)
    if not names:
        raise AutolabelError(f"{where} holds no names of classes")
    return names


def decoded(data: bytes, where: str) -> str:
    """Text of a file: UTF-8, or UTF-16 as Windows writes it.

    Raises:
        BadBoxesError: it is neither; names the file and the byte.

    """
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadBoxesError(
            f"{where} is no text in UTF-8 (at its byte {error.start}): save it in that encoding"
        ) from error


def _from_yaml(text: str, where: str) -> tuple[str, ...]:
    import yaml

    try:
        names = yaml.safe_load(text)["names"]
        if isinstance(names, dict):
            names = [names[number] for number in range(len(names))]
        if not isinstance(names, list) or not all(isinstance(one, _PLAIN) for one in names):
            raise TypeError
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise AutolabelError(
            f"{where}: expected `names`, a list or numbers from 0 with a name each"
        ) from error
    return tuple(map(str, names))


def _rows(data: bytes, where: str, read: Callable[[str], Row | None], form: str) -> list[Row]:
    """Read each line of a file that is no comment.

    Raises:
        BadBoxesError: names the file and the first line that is not of this form.

    """
    rows: list[Row | None] = []
    for number, line in enumerate(decoded(data, where).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            rows.append(read(line))
        except (ValueError, IndexError):
            found = f"{line.strip()!r:.80} of {counted(len(line.split()), 'column')}"
            reason = f"expected {form}, found {where}:{number}: {found}"
            raise BadBoxesError(reason) from None
    return [one for one in rows if one]


def parse_text(data: bytes, where: str, source: str, names: tuple[str, ...] = ()) -> Boxes:
    """Read the boxes of a text file: in pixels, or with names of classes in YOLO's fractions.

    Raises:
        BadBoxesError: names the file and the first line that is not of this form.

    """
    if names:
        form = "`class x y width height [score]` in fractions of the picture, with a class from 0"
        rows = _rows(data, where, partial(_yolo_row, names), f"{form} to {len(names) - 1}")
        return boxes_of(rows, source)
    rows = _rows(data, where, _row, "`label score x1 y1 x2 y2`, or KITTI's 15 or 16 columns")
    # A class's number and fractions: a box of pixels has some above 1.
    if rows and all(
        row.label.isdecimal() and all(0 <= one <= 1 for one in (row.score, *row.xyxy_px))
        for row in rows
    ):
        form = "is in YOLO's form: name the file of its class names with --box-names"
        raise BadBoxesError(f"{where} {form}")
    return boxes_of(rows, source)


def _yolo_row(names: tuple[str, ...], line: str) -> Row:
    fields = line.split()
    number, values = int(fields[0]), list(map(float, fields[1:]))
    is_polygon = len(values) >= 6 and len(values) % 2 == 0
    sides = values if is_polygon else values[:4]
    far = max(map(abs, sides), default=0) > _MOST
    if number < 0 or far or not (is_polygon or len(values) in {4, 5}):
        raise ValueError
    label = names[number]
    if is_polygon:
        xs, ys = values[::2], values[1::2]
        return Row(label, (min(xs), min(ys), max(xs), max(ys)))
    x, y, width, height = sides
    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return Row(label, box, values[4] if len(values) == 5 else 1.0)


def _row(line: str) -> Row | None:
    """Read `label score x1 y1 x2 y2`, or KITTI's columns; a label may hold spaces."""
    if is_object_line(line.split()):
        return _object_row(line.split())
    label, score, *sides = line.rsplit(maxsplit=5)
    words = label.split()[1:]
    columns = len(words) > 1 and all(map(_is_number, words))  # of another form
    if len(sides) != 4 or columns:
        raise ValueError
    left, top, right, bottom = map(float, sides)
    return Row(label.strip(), (left, top, right, bottom), float(score))


def is_object_line(fields: list[str]) -> bool:
    """Whether these are the fields of a line of the object benchmark."""
    known = len(fields) in {_FIELDS, _FIELDS + 1} and not _is_number(fields[0])
    return known and all(map(_is_number, fields[1:]))


def is_tracking_line(fields: list[str]) -> bool:
    """Whether these are the fields of a line of the tracking benchmark."""
    integers = all(one.lstrip("-").isdecimal() for one in fields[:2])
    return integers and is_object_line(fields[2:])


def _object_row(fields: list[str], track_id: int | None = None) -> Row | None:
    """Return the box of a line of the object benchmark, None for what is to be ignored."""
    if fields[0] == "DontCare":
        return None
    left, top, right, bottom, *others = map(float, fields[4:])
    score = others[-1] if len(fields) > _FIELDS else 1.0
    return Row(fields[0], (left, top, right, bottom), score, track_id)


def read_tracking(text: str, sequence: str, where: str) -> dict[str, ImageRows]:
    """Read a file of the tracking benchmark: images by `SEQUENCE/FRAME`."""

    def read(fields: list[str]) -> Row | None:
        if not is_tracking_line(fields):
            raise ValueError(f"{' '.join(fields)!r:.80} is no label")
        track = read_as(WHOLE_NUMBER, fields[1], "track id")
        return _object_row(fields[2:], track if track >= 0 else None)

    found: dict[str, ImageRows] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if fields:
            frame = int(fields[0]) if fields[0].isdecimal() else len(found)
            image = found.setdefault(f"{sequence}/{frame:06d}", ImageRows())
            image.add(f"{where}:{number}", read, fields)
    return found


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


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
    elif file is None and NuScenes().fits(Folder(path_or_url)):
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
        return parse_text(data, storage.redact(file.uri), stamp, classes)

    return entry_of(path, read, fractions=bool(classes), version=version)
