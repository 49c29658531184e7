"""Boxes of XML: CVAT's 1.1, and Pascal VOC's with a file per image.

CVAT names each image; of videos, tracks have boxes at numbered frames: between two of them a box
moves evenly, as in CVAT, until one says that it is outside. Polygons, ellipses, cuboids and masks
stand for the box around them, and turned boxes for the upright one around. What else there is
(points, polylines, skeletons, tags) is counted, and no box.
"""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath

from sam2_core.types import AutolabelError
from tasks.boxes.imported import (
    WHOLE_NUMBER,
    ImageRows,
    Row,
    Rows,
    Xyxy,
    around,
    read_as,
    score_and_track,
    size_hw_of,
    turned,
)
from tasks.frames.identity import plain_name

_MOST_FRAMES = 1_000_000  # of a track: nine hours of video
_SIDES = {
    "box": ("xtl", "ytl", "xbr", "ybr"),
    "mask": ("left", "top", "width", "height"),
    "ellipse": ("cx", "cy", "rx", "ry"),
}
_Keyframe = tuple[int, Xyxy, bool, float]  # frame, box, whether it is outside from there, score
# What CVAT calls the second of two images of one name in a project.
_RENAMED = re.compile(r"_\d+(\.[^./]*)?$")


def read_xml(data: bytes, where: str) -> Rows:
    """Read a file of CVAT, or one of Pascal VOC, whose image is named like it.

    Raises:
        AutolabelError: it is neither, or damaged; names the line. Or a <filename> that is not its
            own name.

    """
    # Without the zeros of UTF-16, in which the words would go unseen.
    plain = data.replace(b"\0", b"")
    if b"<!ENTITY" in plain or b"<!DOCTYPE" in plain:
        raise AutolabelError(f"{where} declares entities, which no box file does: it is not read")
    try:
        root = ET.fromstring(data)  # noqa: S314 - without entities
    except (ET.ParseError, LookupError, ValueError) as error:  # ..., the encoding that it names
        line, _ = getattr(error, "position", (1, 0))
        raise AutolabelError(f"{where} is no XML, or is damaged: line {line}") from error
    if root.tag == "annotations":
        return _cvat(root, where)
    if root.tag != "annotation":
        raise AutolabelError(f"{where} is neither CVAT's XML 1.1 nor Pascal VOC's")
    image = ImageRows(size_hw_of(root.findtext("size/height"), root.findtext("size/width")))
    for position, element in enumerate(root.findall("object")):
        image.add(f"{where}: object number {position}", _voc_row, element)
    name, told = (
        where.rpartition("/")[2],
        PurePosixPath(plain_name(root.findtext("filename") or "")),
    )
    if told.name and PurePosixPath(name).stem not in {told.name, told.stem}:
        raise AutolabelError(
            f"{where}: its <filename> is {told.name!r:.80}, and pictures are found by the name of "
            "the XML: call both like the picture"
        )
    return Rows(((name, image),))


def _voc_row(element: ET.Element) -> Row:
    sides = [element.findtext(f"bndbox/{name}") or "" for name in ("xmin", "ymin", "xmax", "ymax")]
    try:
        left, top, right, bottom = map(float, sides)
    except ValueError:
        raise ValueError(
            "it has no whole bndbox: write xmin, ymin, xmax and ymax, or leave the object out"
        ) from None
    given = {child.tag: child.text for child in element if child.text}
    return Row(
        _label(element.findtext("name")), (left, top, right, bottom), *score_and_track(given)
    )


def _label(text: str | None) -> str:
    if not (text or "").strip():
        raise ValueError("it has no label")
    return (text or "").strip()


def _cvat(root: ET.Element, where: str) -> Rows:
    images: dict[str, ImageRows] = {}
    task_of: dict[str, str | None] = {}  # an image's name, "" for tracks: a task of a project
    height, width = (root.findtext(f".//original_size/{side}") for side in ("height", "width"))
    for element in (*root.findall("image"), *root.findall("track")):
        name = element.get("name") or "" if element.tag == "image" else ""
        task = element.get("task_id")
        if name in images or task_of.get(_RENAMED.sub(r"\1", name), task) != task:
            raise AutolabelError(
                f"{where} holds several tasks or subsets of a project, which share "
                f"{f'names such as {name!r:.80}' if name else 'numbers of frames'}: export each by "
                "itself"
            )
        task_of[name] = task
        if element.tag == "image":
            images[name] = ImageRows(size_hw_of(element.get("height"), element.get("width")))
            for position, shape in enumerate(element):
                images[name].add(
                    f"{where}: image {name}: shape number {position}", _row_of_shape, shape
                )
            continue
        try:
            _add_track(images, element, size_hw_of(height, width), where)
        except ValueError as error:
            raise AutolabelError(f"{where}: {error}") from None
    if not images:
        raise AutolabelError(f"{where} holds no images and no tracks of CVAT's XML 1.1")
    stop_frame = root.findtext(".//stop_frame") or ""
    frames = int(stop_frame) + 1 if stop_frame.isdecimal() else 0
    return Rows(tuple(images.items()), counted_frames=frames if "" in task_of else None)


def _add_track(
    images: dict[str, ImageRows],
    element: ET.Element,
    size_hw: tuple[int, int] | None,
    where: str,
) -> None:
    """Add the boxes of a track; a ValueError where it is not clear whose they are."""
    track = read_as(WHOLE_NUMBER, element.get("id") or "0", "id of a track")
    shapes: list[_Keyframe] = []
    passed_over: set[str] = set()  # a track is one, in however many frames
    for shape in element:
        frame = read_as(WHOLE_NUMBER, shape.get("frame") or "0", f"frame in track {track}")
        image = images.setdefault(f"{frame:06d}", ImageRows(size_hw))
        try:
            label, box = _label(element.get("label")), _box(shape)
            score, _ = score_and_track(_attributes(shape))
        except ValueError as error:
            image.problem = f"{where}: track {track} at frame {frame}: {error}"
            continue
        if not isinstance(box, str):
            shapes.append((frame, box, shape.get("outside") == "1", score))
        elif box not in passed_over:
            passed_over.add(box)
            image.take(f"track of {box}s")
    shapes.sort()
    if shapes and shapes[-1][0] - shapes[0][0] > _MOST_FRAMES:
        raise ValueError(
            f"track {track} reaches from frame {shapes[0][0]} to {shapes[-1][0]}, and at most "
            f"{_MOST_FRAMES:,} frames are read of one"
        )
    for frame, box, score in _filled(shapes):
        image = images.setdefault(f"{frame:06d}", ImageRows(size_hw))
        image.take(Row(label, box, score, track))


def _row_of_shape(shape: ET.Element) -> Row | str:
    box = _box(shape)
    if isinstance(box, str):
        return box
    return Row(_label(shape.get("label")), box, *score_and_track(_attributes(shape)))


def _attributes(shape: ET.Element) -> dict[str, str]:
    return {
        attribute.get("name", ""): attribute.text
        for attribute in shape.iter("attribute")
        if attribute.text
    }


def _box(shape: ET.Element) -> Xyxy | str:
    """Return the box around a shape; its name where it is none of one object.

    Raises:
        ValueError: a number of it is missing.

    """
    try:
        if shape.tag == "polygon":
            points = [point.split(",") for point in shape.attrib["points"].split(";")]
            return around([float(x) for x, _ in points], [float(y) for _, y in points])
        if shape.tag == "cuboid":  # corners are called xtl1, ytl1, xbl2, ...
            corners = {name: float(shape.attrib[name]) for name in shape.attrib if name[-1] in "12"}
            xs = [value for name, value in corners.items() if name[0] == "x"]
            ys = [value for name, value in corners.items() if name[0] == "y"]
            return around(xs, ys)
        if shape.tag not in _SIDES:
            return shape.tag.rstrip("s")
        a, b, c, d = (float(shape.attrib[name]) for name in _SIDES[shape.tag])
        degrees = float(shape.get("rotation") or 0) % 360
    except (ValueError, KeyError):
        raise ValueError("it has no whole box") from None
    if shape.tag == "mask":
        return a, b, a + c, b + d
    if shape.tag == "ellipse":
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        across, down = math.hypot(c * cos, d * sin), math.hypot(c * sin, d * cos)
        return a - across, b - down, a + across, b + down
    return turned((a, b, c, d), degrees)


def _filled(shapes: list[_Keyframe]) -> Iterator[tuple[int, Xyxy, float]]:
    """Yield a track's box at every frame in which it is to be seen, with its keyframe's score."""
    for (frame, box, outside, score), (until, to, *_) in pairwise(shapes):
        for at in range(frame, until) if not outside else ():
            share = (at - frame) / (until - frame)
            left, top, right, bottom = (a + share * (b - a) for a, b in zip(box, to, strict=True))
            yield at, (left, top, right, bottom), score
    if shapes and not shapes[-1][2]:
        frame, box, _, score = shapes[-1]
        yield frame, box, score
