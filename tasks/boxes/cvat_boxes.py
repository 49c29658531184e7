"""Boxes in CVAT's XML 1.1, of images and of videos.

Of images each has its name, of videos tracks have boxes at numbered frames; between two of them a
box moves evenly, as in CVAT, until one says that it is outside. Polygons, polylines, ellipses and
masks stand for the box around them, and turned boxes for the upright one around.
"""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise

from sam2_core.types import AutolabelError
from tasks.boxes.rows import ImageRows, Row, Rows, Xyxy, size_hw_of

_MOST_FRAMES = 1_000_000  # of a track: nine hours of video
_POINTS = {"polygon", "polyline"}
_NUMBERS = {
    "box": ("xtl", "ytl", "xbr", "ybr"),
    "mask": ("left", "top", "width", "height"),
    "ellipse": ("cx", "cy", "rx", "ry"),
}


def read_cvat(data: bytes, where: str) -> Rows:
    """Read a file.

    Raises:
        AutolabelError: it is no such file, or damaged; names the line.

    """
    if b"<!ENTITY" in data or b"<!DOCTYPE" in data:
        raise AutolabelError(f"{where} declares entities, which CVAT never does: it is not read")
    images: dict[str, ImageRows] = {}
    size_hw: tuple[int, int] | None = None
    try:
        for _, element in ET.iterparse(io.BytesIO(data)):  # noqa: S314 - without entities
            if element.tag == "original_size":
                size_hw = size_hw_of(element.findtext("height"), element.findtext("width"))
            elif element.tag == "image":
                name = element.get("name") or ""
                image = ImageRows(size_hw_of(element.get("height"), element.get("width")))
                for position, shape in enumerate(element):
                    image.add(f"{where}: image {name}: shape number {position}", _row, shape)
                images[name] = image
                element.clear()
            elif element.tag == "track":
                _add_track(images, element, size_hw, where)
                element.clear()
    except ET.ParseError as error:
        raise AutolabelError(f"{where} is no XML, or is damaged: {error}") from error
    if not images:
        raise AutolabelError(f"{where} holds no images and no tracks of CVAT's XML 1.1")
    return Rows(tuple(images.items()))


def _row(shape: ET.Element) -> Row | None:
    box = _box(shape)
    return Row(shape.get("label") or "", box) if box else None


def _box(shape: ET.Element) -> Xyxy | None:
    """Return the box around a shape; None for points, which have none.

    Raises:
        ValueError: a number of it is missing.

    """
    try:
        if shape.tag in _POINTS:
            points = [point.split(",") for point in shape.attrib["points"].split(";")]
            xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
            return min(xs), min(ys), max(xs), max(ys)
        if shape.tag not in _NUMBERS:
            return None
        a, b, c, d = (float(shape.attrib[name]) for name in _NUMBERS[shape.tag])
        angle = math.radians(float(shape.get("rotation") or 0))
    except (ValueError, KeyError):
        raise ValueError("it has no whole box") from None
    if shape.tag == "mask":
        return a, b, a + c, b + d
    if shape.tag == "ellipse":
        return a - c, b - d, a + c, b + d
    if not angle:
        return a, b, c, d
    x, y, cos, sin = (a + c) / 2, (b + d) / 2, abs(math.cos(angle)), abs(math.sin(angle))
    width, height = (c - a) * cos + (d - b) * sin, (c - a) * sin + (d - b) * cos
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _add_track(
    images: dict[str, ImageRows],
    element: ET.Element,
    size_hw: tuple[int, int] | None,
    where: str,
) -> None:
    track, label = _whole(element, "id", f"{where}: a track"), element.get("label") or ""
    shapes: list[tuple[int, Xyxy, bool]] = []
    for shape in element:
        frame = _whole(shape, "frame", f"{where}: a box of track {track}")
        try:
            box = _box(shape)
        except ValueError as error:
            image = images.setdefault(f"{frame:06d}", ImageRows(size_hw))
            image.problem = f"{where}: track {track} at frame {frame}: {error}"
            continue
        if box is not None:
            shapes.append((frame, box, shape.get("outside") == "1"))
    shapes.sort()
    if shapes and shapes[-1][0] - shapes[0][0] > _MOST_FRAMES:
        raise AutolabelError(
            f"{where}: track {track} reaches from frame {shapes[0][0]} to {shapes[-1][0]}, and "
            f"at most {_MOST_FRAMES:,} frames are read of one"
        )
    for frame, box in _filled(shapes):
        image = images.setdefault(f"{frame:06d}", ImageRows(size_hw))
        image.rows.append(Row(label, box, track_id=track))


def _whole(element: ET.Element, name: str, what: str) -> int:
    """Return a number that a track cannot do without.

    Raises:
        AutolabelError: it is none.

    """
    text = element.get(name) or "0"
    if not text.isdecimal():
        raise AutolabelError(f"{what} has {name} {text!r}, which is no whole number")
    return int(text)


def _filled(shapes: list[tuple[int, Xyxy, bool]]) -> Iterator[tuple[int, Xyxy]]:
    """Yield the boxes of a track at every frame in which it is to be seen."""
    for (frame, box, outside), (until, to, _) in pairwise(shapes):
        for number in range(frame, until) if not outside else ():
            share = (number - frame) / (until - frame)
            left, top, right, bottom = (a + share * (b - a) for a, b in zip(box, to, strict=True))
            yield number, (left, top, right, bottom)
    if shapes and not shapes[-1][2]:
        yield shapes[-1][:2]
