"""Boxes in KITTI's label files.

Object: a file an image, each line `type truncated occluded alpha x1 y1 x2 y2 h w l x y z ry
[score]`. Tracking: a file a sequence, lines with `frame track_id` before that. `DontCare` is no
object. (devkits of both benchmarks, readme.txt)
"""

from __future__ import annotations

from tasks.boxes.rows import ImageRows, Row

_FIELDS = 15
_IGNORED = "DontCare"


def is_object_line(fields: list[str]) -> bool:
    """Whether these are the fields of a line of the object benchmark."""
    return len(fields) in {_FIELDS, _FIELDS + 1} and _numbers(fields[1:]) and not _number(fields[0])


def is_tracking_line(fields: list[str]) -> bool:
    """Whether these are the fields of a line of the tracking benchmark."""
    integers = all(one.lstrip("-").isdecimal() for one in fields[:2])
    return integers and is_object_line(fields[2:])


def object_row(fields: list[str]) -> Row | None:
    """Return the box of a line of the object benchmark, None for what is to be ignored."""
    if fields[0] == _IGNORED:
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
