"""YOLO's text boxes: the names of their classes, and which form their lines have.

Lines are in fractions of the picture: `class x y width height`, where `x` and `y` are the
centre's, or `class x1 y1 x2 y2 x3 y3 ...`, a polygon, which stands for the box around it. Behind
either may be a score, the id of a track, or both; behind a box, keypoints, whose count a data.yaml
tells as `kpt_shape`; without that, what may be keypoints is no polygon. Nothing in a line says
which it is: all lines of all files have one form, that which fits the most of them, and which is
told. Where two fit and say different things, the files are refused.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sam2_core.types import AutolabelError
from tasks.boxes.imported import Row, Xyxy, around, decoded

# A box may reach over the picture's edge; what is far beyond is in pixels.
_MOST = 2.0
_SCORE, _ID = "score", "id"
_ROUNDED = 0.003  # of the picture, by which writers miss its edge
_FEWEST_DECIMALS = 4
_MOST_DIGITS = 18  # of a track's id
_NUMBERED = re.compile(r"\d+\s*[\s,;:=]\s*\S")  # a class with its number: `0 car`, `0,car`


@dataclass(frozen=True)
class Classes:
    """What a file of classes says.

    Attributes:
        names: of the classes from 0.
        keypoint_columns: of a line; None where the file does not say whether there are any.

    """

    names: tuple[str, ...]
    keypoint_columns: int | None = None


def read_classes(data: bytes, where: str) -> Classes:
    """Read the names of classes: one a line (classes.txt, obj.names), or `names` of a data.yaml.

    Raises:
        AutolabelError: it has none; names the file.

    """
    text, name = decoded(data, where), where.lower()
    if name.endswith((".yaml", ".yml")):
        return _from_yaml(text, where)
    names = tuple(map(str.strip, text.rstrip().splitlines()))
    is_other = any("=" in line for line in names) or all(map(_NUMBERED.match, names))
    if name.endswith((".json", ".xml")) or not all(names) or is_other:
        raise AutolabelError(
            f"{where} holds no names of classes: write one in each line, without numbers before "
            "them and without `=`, or name a data.yaml"
        )
    return Classes(names)


def _from_yaml(text: str, where: str) -> Classes:
    import yaml

    try:
        # Of this loader everything is text: `no` and `2.0` are names, too.
        content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - makes no objects
        names, keypoints = content["names"], content.get("kpt_shape")
        if isinstance(names, dict):
            names = [names[str(number)] for number in range(len(names))]
        if not (
            isinstance(names, list)
            and names
            and all(isinstance(name, str) and name for name in names)
        ):
            raise TypeError
        if not keypoints:
            return Classes(tuple(names))
        count, dimensions = map(int, keypoints)
        return Classes(tuple(names), count * dimensions)
    except (
        yaml.YAMLError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise AutolabelError(
            f"{where}: expected `names`, a list or numbers from 0 with a name each"
        ) from error


@dataclass(frozen=True)
class Form:
    """What the columns of a line are.

    Attributes:
        tail: what comes behind the box or polygon, in this order; the last may be missing.
        is_polygon: a polygon with three corners or more; without a tail, a line may be a box.
        keypoint_columns: behind the box.
        is_padded: all coordinates have as many digits, so that `1` is none.

    """

    tail: tuple[str, ...] = ()
    is_polygon: bool = False
    keypoint_columns: int = 0
    is_padded: bool = False

    def __str__(self) -> str:
        sides = "x1 y1 x2 y2 x3 y3 ..." if self.is_polygon else "x y width height"
        keypoints = ("keypoints",) if self.keypoint_columns else ()
        return f"`{' '.join(('class', sides, *keypoints, *self.tail))}`"

    def row(self, line: str, names: Sequence[str]) -> Row:
        """Return the box of a line; a ValueError where the line is not of this form."""
        number, *columns = line.split()
        count, most = len(columns), len(self.tail)
        is_polygon = self.is_polygon and (count != 4 or most > 0)
        # A polygon has pairs of columns: of two behind it, one is there where the count is odd.
        corners = count - most + (count % 2 if most > 1 else 0)
        body = corners if is_polygon else 4 + self.keypoint_columns
        sides = columns[: corners if is_polygon else 4]
        tail = dict(zip(self.tail, columns[body:], strict=False))
        values, score, track_id = list(map(float, sides)), float(tail.get(_SCORE, 1)), tail.get(_ID)
        fits = (
            body % 2 == 0 and body >= 6 if is_polygon else body <= count <= body + most,
            not self.is_padded or all("." in side for side in sides),
            # What is not finite is of any form: it fails its box alone, later.
            all(-_MOST < value < _MOST for value in values if math.isfinite(value)),
            0 <= score <= 1 or not math.isfinite(score),
            not track_id or (track_id.isdecimal() and len(track_id) <= _MOST_DIGITS),
            int(number) in range(len(names)),
        )
        if not all(fits):
            raise ValueError
        box = around(values[::2], values[1::2]) if is_polygon else _of_centre(values)
        return Row(names[int(number)], box, score, int(track_id) if track_id else None)


def _of_centre(values: Sequence[float]) -> Xyxy:
    x, y, width, height = values
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def form_of(lines: Sequence[tuple[str, str]], classes: Classes) -> Form:
    """Return the form that fits the most lines; each with its place, for messages.

    Raises:
        AutolabelError: two forms do, and say different things; names the first line.

    """
    is_padded, keypoints = _are_padded([line for _, line in lines]), classes.keypoint_columns
    forms = [
        Form(tail, is_polygon, keypoints or 0, is_padded)
        for is_polygon in ((False,) if keypoints else (False, True))
        for tail in ((), (_SCORE,), (_ID,), (_SCORE, _ID))
    ]
    read = {form: [_row_or_none(form, line, classes.names) for _, line in lines] for form in forms}
    fitting = {form: len(lines) - rows.count(None) for form, rows in read.items()}
    most = max(fitting.values())
    best = [form for form in forms if fitting[form] == most]
    for other in best if most else ():
        for (place, line), row, another in zip(lines, read[best[0]], read[other], strict=True):
            if row != another:
                raise AutolabelError(
                    f"{place}: {line!r:.80} may be {best[0]} and {other}: write coordinates and "
                    "scores with a point (1.0) and ids without, or leave out the columns behind "
                    "the box or polygon"
                )
    poses = [(place, line) for place, line in lines if _may_have_keypoints(line)]
    counts = {len(line.split()) for _, line in poses}
    if keypoints is None and len(poses) >= max(most, 1) and max(counts) - min(counts) <= 2:
        place, line = poses[0]
        also = f" as well as {best[0]}" if most else ""
        raise AutolabelError(
            f"{place}: {line!r:.80} may be a box with keypoints{also}: "
            "give --box-names a data.yaml with kpt_shape, [0, 0] where there are no keypoints"
        )
    return best[0]


def _row_or_none(form: Form, line: str, names: Sequence[str]) -> Row | None:
    try:
        return form.row(line, names)
    except ValueError:
        return None


def _are_padded(lines: Sequence[str]) -> bool:
    """Whether a writer fills numbers with zeros, by the first four, which all forms have."""
    digits = [text.partition(".")[2] for line in lines for text in line.split()[1:5]]
    same = len({len(each) for each in digits}) == 1 and len(digits[0]) >= _FEWEST_DECIMALS
    return same and any(each.endswith("0") for each in digits)


def _may_have_keypoints(line: str) -> bool:
    """Whether a line may be a box in the picture with keypoints behind it, of 2 or 3 columns."""
    values = [float(text) for text in line.split()[1:]]
    if len(values) < 6:
        return False
    left, top, right, bottom = _of_centre(values[:4])
    is_inside = min(left, top) >= -_ROUNDED and max(right, bottom) <= 1 + _ROUNDED
    # Four corners that are those of a turned box are surely a polygon.
    is_box = len(values) == 8 and all(
        abs(values[i] + values[i + 4] - values[i + 2] - values[i + 6]) < _ROUNDED for i in (0, 1)
    )
    behind = [values[4 : len(values) - tail] for tail in (0, 1, 2)]
    return is_inside and not is_box and any(
        points and len(points) % columns == 0
        and all(0 <= value <= 1 + (i % columns == 2) for i, value in enumerate(points))
        for points in behind for columns in (2, 3)
    )  # fmt: skip
