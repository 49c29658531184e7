"""Boxes in text files: lines of `label score x1 y1 x2 y2` in pixels, KITTI's, or YOLO's.

KITTI's object benchmark has a file an image, each line `type truncated occluded alpha x1 y1 x2 y2
h w l x y z ry [score]`; its tracking benchmark a file a sequence, lines with `frame track_id`
before that. `DontCare` is no object. (devkits of both benchmarks, readme.txt)

YOLO's are in fractions: `class x y width height [score]`, where `x` and `y` are the centre's; a
line of a polygon (`class x1 y1 x2 y2 x3 y3 ...`) stands for the box around it. Classes are numbers,
and a file beside has their names.
"""

from __future__ import annotations

import codecs

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.rows import BadBoxesError, ImageRows, Row, boxes_of
from tasks.wording import counted

_FIELDS = 15  # of a line of KITTI's object benchmark
# A box may reach over the picture's edge; what is far beyond is in pixels.
_MOST = 2.0
_PLAIN = (str, int, float)  # of what a class may be called


def read_names(data: bytes, where: str) -> tuple[str, ...]:
    """Read the names of classes: one a line (classes.txt, obj.names), or `names` of a data.yaml.

    Raises:
        AutolabelError: it has none; names the file.

    """
    try:
        text = decoded(data, where)
    except BadBoxesError as error:
        raise AutolabelError(str(error)) from error
    if where.lower().endswith((".yaml", ".yml")):
        names = _from_yaml(text, where)
    else:
        names = tuple(map(str.strip, text.rstrip().splitlines()))
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
        return tuple(map(str, names))
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise AutolabelError(
            f"{where}: expected `names`, a list or numbers from 0 with a name each"
        ) from error


def parse_yolo(data: bytes, where: str, source: str, names: tuple[str, ...]) -> Boxes:
    """Read a file of YOLO's text form; its boxes are in fractions of the picture's size.

    Raises:
        BadBoxesError: names the file and the first lines that are not of this form.

    """
    rows: list[Row] = []
    wrong: list[str] = []
    for number, line in enumerate(decoded(data, where).splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(_row(line.split(), names))
        except (ValueError, IndexError):
            wrong.append(f"{where}:{number}: {line.strip()!r:.80}")
    if wrong:
        raise BadBoxesError(
            f"expected `class x y width height [score]` in fractions of the picture, with a class "
            f"from 0 to {len(names) - 1}: {'; '.join(wrong[:3])}"
            + (f" (and {counted(len(wrong) - 3, 'more line')})" if len(wrong) > 3 else "")
        )
    return boxes_of(rows, source)


def _row(fields: list[str], names: tuple[str, ...]) -> Row:
    """Return the box of a line; ValueError or IndexError for no line."""
    number, values = int(fields[0]), [float(one) for one in fields[1:]]
    is_polygon = len(values) >= 6 and len(values) % 2 == 0
    places = values if is_polygon else values[:4]
    if number < 0 or max(map(abs, places), default=0) > _MOST:
        raise ValueError
    label = names[number]
    if is_polygon:
        xs, ys = values[::2], values[1::2]
        return Row(label, (min(xs), min(ys), max(xs), max(ys)))
    if len(values) not in {4, 5}:
        raise ValueError
    x, y, width, height = values[:4]
    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return Row(label, box, values[4] if len(values) == 5 else 1.0)


def _is_numbers(words: list[str]) -> bool:
    """Whether several words are numbers, and none belongs to a label."""
    return len(words) > 1 and all(one.lstrip("-").replace(".", "", 1).isdecimal() for one in words)


def _is_yolo(row: Row) -> bool:
    """Whether a line holds a class's number and fractions: a box of pixels has some above 1."""
    return row.label.isdecimal() and all(0 <= one <= 1 for one in (row.score, *row.xyxy_px))


def parse_text(data: bytes, where: str, source: str) -> Boxes:
    """Read lines of `label score x1 y1 x2 y2`, or KITTI's; a label may hold spaces.

    Raises:
        BadBoxesError: names the file and every line that is not of this form.

    """
    rows: list[Row] = []
    wrong: list[str] = []
    for number, line in enumerate(decoded(data, where).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if is_object_line(line.split()):
            row = object_row(line.split())
            rows += [row] if row else []
            continue
        fields = line.rsplit(maxsplit=5)
        try:
            if len(fields) != 6 or _is_numbers(fields[0].split()[1:]):
                raise ValueError
            score, left, top, right, bottom = map(float, fields[1:])
            rows.append(Row(fields[0].strip(), (left, top, right, bottom), score))
        except ValueError:
            found = f"{line!r:.80} of {counted(len(line.split()), 'column')}"
            wrong.append(
                f"{where}:{number}: expected `label score x1 y1 x2 y2`, or KITTI's 15 or 16 "
                f"columns, found {found}"
            )
    if rows and all(map(_is_yolo, rows)):
        wrong = [f"{where} is in YOLO's form: name the file of its class names with --box-names"]
    if wrong:
        more = f" (and {counted(len(wrong) - 3, 'more line')})" if len(wrong) > 3 else ""
        raise BadBoxesError("; ".join(wrong[:3]) + more)
    return boxes_of(rows, source)


def is_object_line(fields: list[str]) -> bool:
    """Whether these are the fields of a line of the object benchmark."""
    return len(fields) in {_FIELDS, _FIELDS + 1} and _numbers(fields[1:]) and not _number(fields[0])


def is_tracking_line(fields: list[str]) -> bool:
    """Whether these are the fields of a line of the tracking benchmark."""
    integers = all(one.lstrip("-").isdecimal() for one in fields[:2])
    return integers and is_object_line(fields[2:])


def object_row(fields: list[str]) -> Row | None:
    """Return the box of a line of the object benchmark, None for what is to be ignored."""
    if fields[0] == "DontCare":
        return None
    left, top, right, bottom = (float(one) for one in fields[4:8])
    score = float(fields[_FIELDS]) if len(fields) > _FIELDS else 1.0
    return Row(fields[0], (left, top, right, bottom), score)


def read_tracking(text: str, sequence: str, where: str) -> dict[str, ImageRows]:
    """Read a file of the tracking benchmark: images by `SEQUENCE/FRAME`."""
    found: dict[str, ImageRows] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        if not is_tracking_line(fields):
            frame = fields[0] if fields[0].isdecimal() else str(len(found))
            image = found.setdefault(_name(sequence, frame), ImageRows())
            image.problem = image.problem or f"{where}:{number}: {line.strip()!r:.80} is no label"
            continue
        image = found.setdefault(_name(sequence, fields[0]), ImageRows())
        row = object_row(fields[2:])
        if row is not None:
            track = int(fields[1])
            if track >= 2**63:
                image.problem = f"{where}:{number}: track id {track} has more than 64 bits"
            image.rows.append(Row(row.label, row.xyxy_px, row.score, track if track >= 0 else None))
    return found


def _name(sequence: str, frame: str) -> str:
    return f"{sequence}/{int(frame):06d}"


def _numbers(fields: list[str]) -> bool:
    return all(map(_number, fields))


def _number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
