"""Boxes that somebody else made, opened: which form they have, and who reads it.

They are in COCO json, CVAT's XML, Pascal VOC's, KITTI's label files, tables of nuImages and T4, or
text files.

Text: one file per image, named like it, each line `label score x1 y1 x2 y2` in original pixels.
Lines that begin with "#" are comments. YOLO's are in fractions (`tasks.boxes.yolo`).

KITTI's object benchmark has a file an image, each line `type truncated occluded alpha x1 y1 x2 y2
h w l x y z ry [score]`; its tracking benchmark a file a sequence, lines with `frame track_id`
before that. `DontCare` is no object. (devkits of both benchmarks, readme.txt)
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.annotations import read_coco, read_nuscenes
from tasks.boxes.imported import (
    WHOLE_NUMBER,
    Entry,
    ImageRows,
    ImportedBoxes,
    Row,
    Rows,
    decoded,
    entry_of,
    in_fractions,
    is_kitti_folder,
    read_as,
)
from tasks.boxes.xml_annotations import read_xml
from tasks.boxes.yolo import Form, form_of, read_classes
from tasks.frames.identity import suffix_of
from tasks.frames.listing import File, Folder, stat_file, walk
from tasks.frames.readers.nuscenes import NuScenes
from tasks.passed_over import PassedOver
from tasks.store import storage
from tasks.wording import counted

_FIELDS = 15  # of a line of KITTI's object benchmark
_MOST_DIGITS = 9  # of a frame's number
# Files of YOLO in which is seen what form all have; one of another form fails its picture.
_MOST_SAMPLED = 500
_SUFFIXES = (".txt", ".xml", ".json")
NamedFile = tuple[str, File]  # by its path below the folder


def _lines(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield the lines without comments, each with its place."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{where}:{number}", line


def _image_of(text: str, where: str, read: Callable[[str], Row | str], form: str) -> ImageRows:
    """Read the boxes of a text file; the first line that is not of this form is their problem."""
    image = ImageRows()
    for place, line in _lines(text, where):
        try:
            image.take(read(line))
        except ValueError:
            found = f"{line.strip()!r:.80} of {counted(len(line.split()), 'column')}"
            image.problem = image.problem or f"expected {form}, found {place}: {found}"
    return image


def _pixel_image(text: str, where: str) -> ImageRows:
    """Read the boxes of a text file in pixels."""
    form = "`label score x1 y1 x2 y2`, KITTI's 15 or 16 columns, or YOLO's with --box-names"
    image = _image_of(text, where, _row_of_line, form)
    if in_fractions(image.rows):
        image.problem = f"{where} is in fractions of the picture, not in pixels"
        if all(row.label.isdecimal() for row in image.rows):
            image.problem += ": for YOLO's form name the file of its class names with --box-names"
    return image


def _yolo_image(text: str, where: str, form: Form, names: Sequence[str]) -> ImageRows:
    """Read the boxes of a text file of YOLO."""
    told = f"{form} in fractions of the picture, with a class from 0 to {len(names) - 1}"
    return _image_of(text, where, lambda line: form.row(line, names), told)


def _row_of_line(line: str) -> Row | str:
    """Read `label score x1 y1 x2 y2`, or KITTI's columns; a label may hold spaces."""
    if is_object_line(line.split()):
        return _object_row(line.split())
    label, score, *sides = line.rsplit(maxsplit=5)
    *names, last = label.split()
    if len(sides) != 4 or (names and _is_number(last)):  # columns of another form
        raise ValueError
    left, top, right, bottom = map(float, sides)
    return Row(label.strip(), (left, top, right, bottom), float(score))


def is_object_line(fields: list[str]) -> bool:
    """Whether these are the fields of a line of the object benchmark."""
    known = len(fields) in {_FIELDS, _FIELDS + 1} and not _is_number(fields[0])
    return known and all(map(_is_number, fields[1:]))


def is_tracking_line(fields: list[str]) -> bool:
    """Whether these are the fields of a line of the tracking benchmark."""
    integers = all(field.removeprefix("-").isdecimal() for field in fields[:2])
    return integers and is_object_line(fields[2:])


def _object_row(fields: list[str], track_id: int | None = None) -> Row | str:
    """Return the box of a line of the object benchmark."""
    if fields[0] == "DontCare":
        return "DontCare region"
    left, top, right, bottom, *others = map(float, fields[4:])
    score = others[-1] if len(fields) > _FIELDS else 1.0
    return Row(fields[0], (left, top, right, bottom), score, track_id)


def read_tracking(text: str, sequence: str, where: str) -> dict[str, ImageRows]:
    """Read a file of the tracking benchmark: images by `SEQUENCE/FRAME`."""

    def read(fields: list[str], is_numbered: bool) -> Row | str:
        if not is_numbered or not is_tracking_line(fields):
            raise ValueError(f"{' '.join(fields)!r:.80} is no label")
        track = read_as(WHOLE_NUMBER, fields[1], "track id")
        return _object_row(fields[2:], track if track >= 0 else None)

    found: dict[str, ImageRows] = {}
    for place, line in _lines(text, where):
        fields = line.split()
        is_numbered = fields[0].isdecimal() and len(fields[0]) <= _MOST_DIGITS
        frame = int(fields[0]) if is_numbered else len(found)
        image = found.setdefault(f"{sequence}/{frame:06d}", ImageRows())
        image.add(place, read, fields, is_numbered)
    return found


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def import_boxes(path_or_url: str, names_uri: str = "") -> ImportedBoxes:
    """Open imported boxes.

    Text files are read when a frame asks for them.

    Args:
        path_or_url: a COCO .json, CVAT's .xml, a .txt file, Pascal VOC's .xml or a folder of these
            two, or a dataset in the form of nuImages or T4.
        names_uri: names of the classes of YOLO's text files; for COCO results, the COCO json whose
            ids they have.

    Raises:
        AutolabelError: missing, empty, or not of these forms; names the file.

    """
    file, where = stat_file(path_or_url), storage.redact(path_or_url)
    stamp = f"imported:{PurePosixPath(path_or_url.rstrip('/')).name}"
    if file is None and NuScenes().fits(Folder(path_or_url)):
        return ImportedBoxes.of_rows(read_nuscenes(path_or_url), where, stamp)
    by_suffix = {suffix_of(file.name): [(file.name, file)]} if file else _listed(path_or_url)
    by_suffix[".txt"] = [
        member for member in by_suffix.get(".txt", []) if member[1].uri != names_uri
    ]
    most = max(by_suffix, key=lambda suffix: len(by_suffix[suffix]))
    suffix = ".txt" if names_uri and by_suffix[".txt"] else most
    files = by_suffix.pop(suffix)
    if not files:
        raise AutolabelError(f"{where} holds no boxes: no .txt, .xml or .json files")
    if suffix == ".txt":
        imported = _text_boxes(files, where, stamp, names_uri)
    else:
        rows = _documents(files, where, suffix, names_uri, is_folder=file is None)
        imported = ImportedBoxes.of_rows(rows, where, stamp)
    if not imported.entries:
        raise AutolabelError(f"{where} holds no boxes: it has no images")
    for other, not_read in by_suffix.items():
        if not_read:
            imported.passed_over.add(f"{other} file", count=len(not_read))
    return imported


def _documents(
    files: list[NamedFile], where: str, suffix: str, names_uri: str, *, is_folder: bool
) -> Rows:
    """Read json or XML: one file, or a folder of Pascal VOC."""
    if suffix == ".json":
        known = storage.read_bytes(names_uri) if names_uri else b""
        where = storage.redact(files[0][1].uri)
        rows = read_coco(storage.read_bytes(files[0][1].uri), where, known)
        if is_folder:
            raise AutolabelError(f"{where} is COCO json: name the file itself, not its folder")
        return rows
    if suffix != ".xml":
        raise AutolabelError(
            f"{where} is neither COCO's .json nor CVAT's or Pascal VOC's .xml nor .txt boxes"
        )
    if names_uri:
        raise AutolabelError(f"{where} names its classes: leave out --box-names")
    if is_folder:
        return Rows(tuple(storage.at_once(_voc_file, files)))
    return read_xml(storage.read_bytes(files[0][1].uri), storage.redact(files[0][1].uri))


def _listed(uri: str) -> dict[str, list[NamedFile]]:
    """Return the files below a folder that may be boxes, by ending and sorted by path.

    A long run may have hundreds of thousands of them: they are listed once. Beside KITTI's folders
    of labels lie others of text files, which have no boxes.
    """
    found: dict[str, list[NamedFile]] = {suffix: [] for suffix in _SUFFIXES}
    for names, files in walk(uri):
        for file in files:
            if suffix_of(file.name) in found:
                found[suffix_of(file.name)].append(("/".join((*names, file.name)), file))
    texts = found[".txt"]
    labels = [named for named in texts if any(map(is_kitti_folder, named[0].split("/")[:-1]))]
    found[".txt"] = labels or texts
    return {suffix: sorted(files, key=lambda named: named[0]) for suffix, files in found.items()}


def _voc_file(named: NamedFile) -> tuple[str, ImageRows]:
    """Read a file of a folder of Pascal VOC; a damaged one costs its image."""
    path, file = named
    data, where = storage.read_bytes(file.uri), storage.redact(file.uri)
    try:
        images = dict(read_xml(data, where).images)
    except AutolabelError as error:
        return path, ImageRows(problem=str(error))
    if (name := where.rpartition("/")[2]) not in images:
        raise AutolabelError(f"{where} is CVAT's XML: name the file itself, not its folder")
    return path, images[name]


def _tracking(files: list[NamedFile]) -> Rows | None:
    """Read files of KITTI's tracking labels; None where the first line of the first is none."""
    text = storage.text_of(storage.read_bytes(files[0][1].uri))
    _, first = next(_lines(text, ""), ("", ""))
    if not is_tracking_line(first.split()):
        return None
    images: dict[str, ImageRows] = {}
    for name, file in files:
        where = storage.redact(file.uri)
        text = decoded(storage.read_bytes(file.uri), where)
        images |= read_tracking(text, name[: -len(".txt")], where)
    return Rows(tuple(images.items()))


def _text_boxes(files: list[NamedFile], where: str, stamp: str, names_uri: str) -> ImportedBoxes:
    """Return boxes of text files: in pixels, or with the names of classes in YOLO's fractions."""
    if (tracked := _tracking(files)) is not None:
        return ImportedBoxes.of_rows(tracked, where, stamp)
    read: Callable[[str, str], ImageRows] = _pixel_image
    versions: tuple[str, ...] = ()
    told_form = ""
    if names_uri:
        classes = read_classes(storage.read_bytes(names_uri), storage.redact(names_uri))
        form = form_of(_sampled(files), classes)
        read = partial(_yolo_image, form=form, names=classes.names)
        told_form = str(form)
        versions = (*classes.names, told_form)
    passed_over, told = PassedOver(where), set[str]()

    def entry(path: str, file: File) -> Entry:
        def read_file(source: str) -> Boxes:
            place = storage.redact(file.uri)
            image = read(decoded(_unchanged(file), place), place)
            if path not in told:  # it is read again where its boxes are needed
                told.add(path)
                image.tell(passed_over)
            return image.boxes(source)

        # A local file is read where its time might be all that has changed.
        version = "" if storage.is_local(file.uri) else "\n".join((file.etag, *versions))
        return entry_of(path, read_file, fractions=bool(names_uri), version=version)

    entries = tuple(entry(path, file) for path, file in files)
    listed = "\n".join([*versions, *(f"{path} {file.etag}" for path, file in files)])
    version = hashlib.sha256(listed.encode()).hexdigest()
    return ImportedBoxes(where, stamp, version, entries, passed_over=passed_over, form=told_form)


def _sampled(files: list[NamedFile]) -> list[tuple[str, str]]:
    """Return the lines of finite numbers of some files, or of all where they are not many."""
    chosen = [file for _, file in files[:: len(files) // _MOST_SAMPLED + 1]]
    data = storage.at_once(lambda file: storage.read_bytes(file.uri), chosen)
    texts = zip(
        map(storage.text_of, data), (storage.redact(file.uri) for file in chosen), strict=True
    )
    lines = (line for text, where in texts for line in _lines(text, where))
    return [(place, line) for place, line in lines if all(map(_is_finite, line.split()))]


def _is_finite(field: str) -> bool:
    return _is_number(field) and math.isfinite(float(field))


def _unchanged(file: File) -> bytes:
    data, now = storage.read_bytes(file.uri), stat_file(file.uri)
    if now is None or now.etag != file.etag:
        raise AutolabelError(
            f"{storage.redact(file.uri)} was replaced since the run began, and its boxes would "
            "be stored as the previous ones: run again"
        )
    return data
