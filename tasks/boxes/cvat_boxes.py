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
from tasks.boxes.rows import ImageRows, Row, Rows

_MOST_FRAMES = 1_000_000  # of a track: nine hours of video
_Box = tuple[float, float, float, float]


def read_cvat(data: bytes, where: str) -> Rows:
    """Read a file.

    Raises:
        AutolabelError: it is no such file, or damaged; names the line.

    """
    if b"<!ENTITY" in data or b"<!DOCTYPE" in data:
        raise AutolabelError(f"{where} declares entities, which CVAT never does: it is not read")
    images: dict[str, ImageRows] = {}
    size: tuple[int, int] | None = None
    try:
        for _, element in ET.iterparse(io.BytesIO(data)):  # noqa: S314 - without entities
            if element.tag == "original_size":
                size = _size(element.findtext("height"), element.findtext("width"))
            elif element.tag == "image":
                name = element.get("name") or ""
                images[name] = _image(element, f"{where}: image {name}")
                element.clear()
            elif element.tag == "track":
                _add_track(images, element, size, where)
                element.clear()
    except ET.ParseError as error:
        raise AutolabelError(f"{where} is no XML, or is damaged: {error}") from error
    if not images:
        raise AutolabelError(f"{where} holds no images and no tracks of CVAT's XML 1.1")
    return Rows(tuple(images.items()))


def _size(height: str | None, width: str | None) -> tuple[int, int] | None:
    try:
        return int(height or ""), int(width or "")
    except ValueError:
        return None


def _image(element: ET.Element, where: str) -> ImageRows:
    image = ImageRows(_size(element.get("height"), element.get("width")))
    for number, shape in enumerate(element):
        try:
            box = _box(shape)
        except (ValueError, TypeError, KeyError):
            image.problem = image.problem or f"{where}: shape number {number} has no whole box"
            continue
        if box is not None:
            image.rows.append(Row(shape.get("label") or "", box))
    return image


def _box(shape: ET.Element) -> _Box | None:
    """Return the box around a shape; None for points, which have none."""
    if shape.tag == "box":
        return _upright(shape)
    if shape.tag in {"polygon", "polyline"}:
        points = [point.split(",") for point in shape.attrib["points"].split(";")]
        xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
        return min(xs), min(ys), max(xs), max(ys)
    if shape.tag == "mask":
        left, top, width, height = (
            float(shape.attrib[name]) for name in ("left", "top", "width", "height")
        )
        return left, top, left + width, top + height
    if shape.tag == "ellipse":
        x, y, rx, ry = (float(shape.attrib[name]) for name in ("cx", "cy", "rx", "ry"))
        return x - rx, y - ry, x + rx, y + ry
    return None


def _upright(shape: ET.Element) -> _Box:
    left, top, right, bottom = (float(shape.attrib[name]) for name in ("xtl", "ytl", "xbr", "ybr"))
    angle = math.radians(float(shape.get("rotation") or 0))
    if not angle:
        return left, top, right, bottom
    x, y, across, down = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
    cos, sin = abs(math.cos(angle)), abs(math.sin(angle))
    width, height = across * cos + down * sin, across * sin + down * cos
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _add_track(
    images: dict[str, ImageRows],
    element: ET.Element,
    size_hw: tuple[int, int] | None,
    where: str,
) -> None:
    track, label = _whole(element, "id", f"{where}: a track"), element.get("label") or ""
    shapes: list[tuple[int, _Box, bool]] = []
    for shape in element:
        frame = _whole(shape, "frame", f"{where}: a box of track {track}")
        try:
            box = _box(shape)
        except (ValueError, TypeError, KeyError):
            name = f"{frame:06d}"
            image = images.setdefault(name, ImageRows(size_hw))
            image.problem = f"{where}: track {track} has no whole box at frame {name}"
            continue
        if box is not None:
            shapes.append((frame, box, shape.get("outside") == "1"))
    if shapes and max(shapes)[0] - min(shapes)[0] > _MOST_FRAMES:
        raise AutolabelError(
            f"{where}: track {track} reaches from frame {min(shapes)[0]} to {max(shapes)[0]}, and "
            f"at most {_MOST_FRAMES:,} frames are read of one"
        )
    for frame, box in _filled(sorted(shapes)):
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


def _filled(shapes: list[tuple[int, _Box, bool]]) -> Iterator[tuple[int, _Box]]:
    """Yield the boxes of a track at every frame in which it is to be seen."""
    for (frame, box, outside), (until, to, _) in pairwise(shapes):
        for number in range(frame, until) if not outside else ():
            share = (number - frame) / (until - frame)
            left, top, right, bottom = (a + share * (b - a) for a, b in zip(box, to, strict=True))
            yield number, (left, top, right, bottom)
    if shapes and not shapes[-1][2]:
        yield shapes[-1][:2]
