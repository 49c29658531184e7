"""Boxes in text files: lines of `label score x1 y1 x2 y2` in pixels, KITTI's, or YOLO's.

KITTI's object benchmark has a file an image, each line `type truncated occluded alpha x1 y1 x2 y2
h w l x y z ry [score]`; its tracking benchmark a file a sequence, lines with `frame track_id`
before that. `DontCare` is no object. (devkits of both benchmarks, readme.txt)

YOLO's are in fractions: `class x y width height [score]`, where `x` and `y` are the centre's; a
line of a polygon (`class x1 y1 x2 y2 x3 y3 ...`) stands for the box around it. Classes are numbers,
and a file beside has their names. Lines that begin with "#" are comments.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.rows import BadBoxesError, ImageRows, Row, boxes_of, whole_number
from tasks.wording import counted

_FIELDS = 15  # of a line of KITTI's object benchmark
# A box may reach over the picture's edge; what is far beyond is in pixels.
_MOST = 2.0
_PLAIN = (str, int, float)  # of what a class may be called
_FORM = "`label score x1 y1 x2 y2`, or KITTI's 15 or 16 columns"


def read_names(data: bytes, where: str) -> tuple[str, ...]:
    """Read the names of classes: one a line (classes.txt, obj.names), or `names` of a data.yaml.

    Raises:
        AutolabelError: it has none; names the file.

    """
    try:
        text = decoded(data, where)
    except BadBoxesError as error:
        raise AutolabelError(str(error)) from error
    names = tuple(map(str.strip, text.rstrip().splitlines()))
    if where.lower().endswith((".yaml", ".yml")):
        names = _from_yaml(text, where)
    if not names:
        raise AutolabelError(f"{where} holds no names of classes")
    return names


def decoded(data: bytes, where: str) -> str:
    """Text of a file: UTF-8, or UTF-16 as Windows writes it.

    Raises:
        BadBoxesError: it is neither; names the file and the place.

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
        BadBoxesError: names the file and the first lines that are not of this form.

    """
    rows: list[Row | None] = []
    wrong: list[str] = []
    for number, line in enumerate(decoded(data, where).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            rows.append(read(line))
        except (ValueError, IndexError):
            columns = counted(len(line.split()), "column")
            wrong.append(f"{where}:{number}: {line.strip()!r:.80} of {columns}")
    if wrong:
        more = f" (and {counted(len(wrong) - 3, 'more line')})" if len(wrong) > 3 else ""
        raise BadBoxesError(f"expected {form}, found {'; '.join(wrong[:3])}{more}")
    return [one for one in rows if one]


def parse_yolo(data: bytes, where: str, source: str, names: tuple[str, ...]) -> Boxes:
    """Read a file of YOLO's text form; its boxes are in fractions of the picture's size.

    Raises:
        BadBoxesError: names the file and the first lines that are not of this form.

    """

    def read(line: str) -> Row:
        fields = line.split()
        number, values = int(fields[0]), list(map(float, fields[1:]))
        is_polygon = len(values) >= 6 and len(values) % 2 == 0
        places = values if is_polygon else values[:4]
        far = max(map(abs, places), default=0) > _MOST
        if number < 0 or far or not (is_polygon or len(values) in {4, 5}):
            raise ValueError
        label = names[number]
        if is_polygon:
            xs, ys = values[::2], values[1::2]
            return Row(label, (min(xs), min(ys), max(xs), max(ys)))
        x, y, width, height = places
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        return Row(label, box, values[4] if len(values) == 5 else 1.0)

    form = "`class x y width height [score]` in fractions of the picture, with a class from 0 to"
    return boxes_of(_rows(data, where, read, f"{form} {len(names) - 1}"), source)


def parse_text(data: bytes, where: str, source: str) -> Boxes:
    """Read lines of `label score x1 y1 x2 y2`, or KITTI's; a label may hold spaces.

    Raises:
        BadBoxesError: names the file and the first lines that are not of this form.

    """

    def read(line: str) -> Row | None:
        if is_object_line(line.split()):
            return _object_row(line.split())
        label, score, *sides = line.rsplit(maxsplit=5)
        words = label.split()[1:]
        columns = len(words) > 1 and all(map(_is_number, words))  # of another form
        if len(sides) != 4 or columns:
            raise ValueError
        left, top, right, bottom = map(float, sides)
        return Row(label.strip(), (left, top, right, bottom), float(score))

    rows = _rows(data, where, read, _FORM)
    # A class's number and fractions: a box of pixels has some above 1.
    if rows and all(
        row.label.isdecimal() and all(0 <= one <= 1 for one in (row.score, *row.xyxy_px))
        for row in rows
    ):
        form = "is in YOLO's form: name the file of its class names with --box-names"
        raise BadBoxesError(f"{where} {form}")
    return boxes_of(rows, source)


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
        track = whole_number(fields[1], "track id")
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
